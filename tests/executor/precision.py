"""How near one step in bf16 or fp32 comes to the plain model in float64, tensor by tensor.

    python -m tests.executor.precision [RANKS]

plays every plan of the covering set of at most RANKS ranks (4 unless given) in bf16 and prints the
worst tensors;

    python -m tests.executor.precision plain

prints how far gradients of the plain model with norms of heads, wholly in bf16 by torch's own
autograd, are from its own in float64.

Gradients are read off AdamW's first moment, which after one step is (1 - beta1) times the clipped
gradient. AdamW's epsilon is as large as the gradients: with the usual one a first update is the
gradient's sign, which says nothing of its size, and turns with the noise of an element near zero.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from executor.groups import ProcessGroups
from executor.launching.task_specs import AdamW
from executor.train import Trainer
from tests.executor.covering import Case
from tests.executor.ranks import TIMEOUT_S, on_ranks_in_turn
from tests.executor.test_parity import BATCH, CLIP, batches, family, start
from tests.executor.test_parity_all import rows_by_ranks
from tests.executor.test_parity_models import TOGETHER
from tests.executor.whole import wholes
from tests.reference import loss_and_gradients, train
from workload.gpt import GPT
from workload.lowering import lower

# Decay and gradient move a weight about equally far, so neither hides the other.
ONE_STEP = AdamW(lr=1.0, eps=0.1, weight_decay=0.1, clip=CLIP)
# Attention is far from even, so queries and keys get gradients worth comparing.
LARGER = 4.0
# Keys' biases shift all scores of a query alike: without RoPE their gradient is zero.
ZERO = 1e-9

Tensors = Mapping[str, Tensor]
Nearness = tuple[str, float, float]


@dataclass(frozen=True)
class Outcome:
    """What one step of a plan gave beside the plain model.

    `loss_error` is the loss's relative error, `clip_error` that of the clipped gradients' global
    norm, which must be the clip. `near` has for each tensor's gradient and each tensor's update a
    name, the cosine with the exact one and how much longer it is (0.01 is 1 %). `stale` are the
    parameters that are not their master copies, rounded.
    """

    loss_error: float
    clip_error: float
    near: list[Nearness]
    stale: list[str]

    @property
    def cosine(self) -> float:
        """The worst of all gradients and updates."""
        return min(cosine for _, cosine, _ in self.near)

    @property
    def length(self) -> float:
        """The largest relative difference of two norms."""
        return max(abs(longer) for *_, longer in self.near)


@dataclass(frozen=True)
class Exact:
    """What the plain model in float64 has before and after one step on a batch."""

    weights: Tensors
    batch: Tensor
    loss: float
    gradients: Tensors
    updates: Tensors


def larger(gpt: GPT, head: float = 1.0) -> dict[str, Tensor]:
    """Weights to start from; `head` multiplies an untied classifier, and so the logits."""
    weights = {name: w * LARGER if w.ndim > 1 else w for name, w in start(gpt).items()}
    return weights | {name: weights[name] * head for name in ("head.w",) if name in weights}


def exact(gpt: GPT, sequences: int, head: float = 1.0) -> Exact:
    """One step of the plain model, its gradients clipped."""
    weights = larger(gpt, head)
    batch = batches(gpt, sequences)[0]
    pair = (batch[:, :-1], batch[:, 1:])
    model: dict[str, Any] = {"heads": gpt.attention.heads, "family": family(gpt)}
    loss, gradients = loss_and_gradients(weights, pair, **model)
    model |= {"lr": ONE_STEP.lr, "eps": ONE_STEP.eps, "weight_decay": ONE_STEP.weight_decay}
    trained = train(weights, [pair], clip=CLIP, **model)
    scale = CLIP / (trained.norms[0] + 1e-6)
    assert scale < 1
    return Exact(
        weights,
        batch,
        loss,
        {name: gradient * scale for name, gradient in gradients.items()},
        {name: trained.weights[name] - weights[name] for name in weights},
    )


def played(rank: int, cases: Sequence[Case], head: float) -> list[dict[str, Any]]:
    """On rank 0 the outcome of each case, as a dictionary; nothing on the other ranks."""
    known: dict[tuple[GPT, int], Exact] = {}
    found = []
    for gpt, plan in cases:
        key = (gpt, plan.batch)
        known[key] = known.get(key) or exact(*key, head)
        program = lower(gpt, plan, plan.grid.coordinates(rank)["pp"])
        cpu = torch.device("cpu")
        groups = ProcessGroups(rank, TIMEOUT_S)
        trainer = Trainer(program, groups, rank=rank, device=cpu, adamw=ONE_STEP)
        trainer.start_from((name, known[key].weights[name]) for name in program.layouts)
        loss = trainer.run([known[key].batch]).steps[0].loss
        found += [asdict(each) for each in _outcome(trainer, loss, known[key])]
    return found


def _outcome(trainer: Trainer, loss: float, expected: Exact) -> Iterator[Outcome]:
    """The outcome on rank 0, nothing elsewhere."""
    program, table, gpt = trainer.program, trainer.table, trainer.program.gpt
    states, layouts = program.states.items(), program.layouts.items()
    held = {name: (table[name], layout) for name, layout in layouts}
    copied = [(f"{name}.master", name, layout) for name, layout in states]
    masters = {n: (table[m], layout) for m, n, layout in copied if m in program.buffers}
    moments = {name: (table[f"{name}.m"], layout) for name, layout in states}
    plan = program.plan
    parameters, trained = wholes(held, plan), wholes(held | masters, plan)
    gradients = [(name, m.double() / (1 - ONE_STEP.beta1)) for name, m in wholes(moments, plan)]
    if not gradients:
        return
    norm = math.sqrt(sum(float(g.square().sum()) for g in dict(gradients).values()))
    updates = [(name, w.double() - expected.weights[name]) for name, w in trained]
    near = _nearness(gpt, "gradient", gradients, expected.gradients)
    near += _nearness(gpt, "update", updates, expected.updates)
    pairs = zip(parameters, trained, strict=True)
    stale = [name for (name, p), (_, w) in pairs if not torch.equal(p, w.to(p.dtype))]
    yield Outcome(abs(loss / expected.loss - 1), abs(norm / CLIP - 1), near, stale)


def _nearness(
    gpt: GPT, what: str, found: Sequence[tuple[str, Tensor]], expected: Tensors
) -> list[Nearness]:
    every = math.sqrt(sum(float(tensor.square().sum()) for tensor in expected.values()))
    near = []
    for name, tensor in found:
        parts = zip(_bands(gpt, name, tensor), _bands(gpt, name, expected[name]), strict=True)
        for (part, ours), (_, theirs) in parts:
            length = float(theirs.norm())
            if length < ZERO * every:
                near.append((f"{what} of {part}", 1.0, float(ours.norm()) / every))
            else:
                cosine = float((ours * theirs).sum() / ours.norm().clamp_min(ZERO)) / length
                near.append((f"{what} of {part}", cosine, float(ours.norm()) / length - 1))
    return near


def _bands(gpt: GPT, name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """A tensor, or queries', keys' and values' parts of it: values' gradients dwarf the others."""
    if ".qkv." not in name:
        return [(name, tensor)]
    kv = gpt.attention.kv_heads or gpt.attention.heads
    width = tensor.shape[-1] // (gpt.attention.heads + 2 * kv)
    parts = tensor.split_with_sizes([gpt.attention.heads * width, kv * width, kv * width], -1)
    return [(f"{name} {band}", part) for band, part in zip("QKV", parts, strict=True)]


def outcomes(ranks: int, cases: Sequence[Case], precision: str, head: float = 1.0) -> list[Outcome]:
    """What one step of each case gives in a precision on so many real ranks."""
    cases = [(gpt, plan.changed(precision=precision)) for gpt, plan in cases]
    return [Outcome(**each) for each in on_ranks_in_turn(ranks, played, cases, head)]


def main(most: int) -> None:
    """Print the worst tensors of the covering set in bf16, and the worst of every measure."""
    sets = rows_by_ranks(most).items()
    found = [each for ranks, cases in sets for each in outcomes(ranks, cases, "bf16")]
    near = sorted((each for outcome in found for each in outcome.near), key=lambda each: each[1])
    for name, cosine, longer in near[:10]:
        print(f"{name:30} cosine {cosine:.6f}, norm {longer:+.2%}")
    print(f"{len(found)} plans, {len(near)} gradients and updates of tensors in bf16")
    print(f"worst cosine           {min(each.cosine for each in found):.6f}")
    print(f"worst norm             {max(each.length for each in found):.2%}")
    print(f"worst loss             {max(each.loss_error for each in found):.1e}")
    print(f"worst clipped norm     {max(each.clip_error for each in found):.1e}")


def plain_in_bf16(gpt: GPT, batch: Tensor) -> list[Nearness]:
    """How near gradients of the plain model wholly in bf16 are to its own in float64."""
    weights, pair = larger(gpt), (batch[:, :-1], batch[:, 1:])
    model: dict[str, Any] = {"heads": gpt.attention.heads, "family": family(gpt)}
    narrow = {name: w.bfloat16() for name, w in weights.items()}
    expected = loss_and_gradients(weights, pair, **model)[1]
    found = loss_and_gradients(narrow, pair, **model)[1]
    wide = [(name, tensor.double()) for name, tensor in found.items()]
    return _nearness(gpt, "gradient", wide, expected)


def plain(trials: int = 30) -> None:
    """Print the worst tensors of the plain model in bf16 over random batches, by depth."""
    draw = torch.Generator().manual_seed(0)
    for layers in (2, 4, 6, 10):
        gpt = replace(TOGETHER["Qwen"], layers=layers)
        worst: dict[str, tuple[float, float]] = {}
        for _ in range(trials):
            batch = torch.randint(0, gpt.vocab, (BATCH, gpt.sequence + 1), generator=draw)
            for name, cosine, longer in plain_in_bf16(gpt, batch):
                kind = name.partition(".")[2] or name
                before = worst.get(kind, (1.0, 0.0))
                worst[kind] = min(before[0], cosine), max(before[1], abs(longer))
        for kind, (cosine, longer) in sorted(worst.items(), key=lambda each: each[1])[:4]:
            print(f"{layers} layers, {kind:12} cosine {cosine:.4f}, norm {longer:.2%}")


if __name__ == "__main__":
    if sys.argv[1:] == ["plain"]:
        plain()
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
