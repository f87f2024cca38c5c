"""The executor against a plain single-process GPT: same losses, same weights, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

import pytest
import torch

from executor.groups import ProcessGroups
from executor.launching.task_specs import AdamW
from executor.train import Trainer
from tests.executor import parity_cases
from tests.executor.ranks import TIMEOUT_S, on_ranks
from tests.executor.whole import wholes
from tests.forms import swapped
from tests.reference import Family, initial_weights, train
from tests.reference_further import Depths
from tests.reference_hybrid import Sizes
from tests.reference_llama import Scaling
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.models import documents, mtp
from workload.models.moe import has_experts
from workload.overlaps import OVERLAPS
from workload.plan import Plan

# The second step has what the first one left: parameters, moments, scales and biases.
STEPS, BATCH, LR, TOLERANCE = 2, 16, 1e-2, 1e-9
# All gradients of all steps here are longer, so every one of them is scaled.
CLIP = 0.1
ADAMW = AdamW(lr=LR, clip=CLIP)
# 250 does not divide by 4 or 8, so the vocabulary's padding is exercised too.
TINY = replace(find_model("tiny-30k"), vocab=250)
OF_FAMILY = (
    *("topk", "router", "router_scale", "capacity", "dropout", "goldfish_k", "goldfish_h"),
    *("window", "global_every", "document", "router_bias_rate", "balance_loss"),
    "output_gate",
)
SWITCHES = (
    *("tied", "biases", "qkv_bias", "qk_norm", "embedding_norm", "sinks", "router_bias"),
    "output_gate",
)


def batches(gpt: GPT, sequences: int = BATCH) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (sequences, gpt.sequence + 1)
    return [torch.randint(gpt.vocab, shape, generator=generator) for _ in range(STEPS)]


def start(gpt: GPT) -> dict[str, torch.Tensor]:
    widths = ["layers", "hidden", "ffn", "heads", "sequence", "vocab", "kv_heads", "head_width"]
    widths += ["experts", "expert_ffn", "shared_ffn", "expert_latent"]
    widths += ["q_rank", "kv_rank", "rope_width", "value_width"]
    return initial_weights(
        pattern=gpt.pattern + gpt.mtp.pattern * mtp.depths_held(gpt),
        depths=depths(gpt),
        mamba=mamba(gpt),
        **{key: gpt.value(key) for key in (*widths, *SWITCHES)},
        gated=gpt.mlp_bands == 2,
        norm_biases=gpt.biases and gpt.norm == "layernorm",
        positions=gpt.positions == "learned",
        routed=[layer for layer in mtp.every_layer(gpt) if has_experts(gpt, layer)],
        seed=0,
        dtype=torch.float64,
    )


def depths(gpt: GPT) -> Depths:
    """What the plain model has to predict further tokens."""
    own = gpt.mtp.layers, mtp.layers_each(gpt), gpt.mtp.shared
    return Depths(*own, weight=gpt.mtp.loss if gpt.mtp.layers else 0.0)


def mamba(gpt: GPT) -> Sizes:
    """The sizes of the plain model's Mamba-2 layers."""
    about = gpt.mamba2.heads, gpt.mamba2.width, gpt.mamba2.groups, gpt.mamba2.state, gpt.mamba2.conv
    return Sizes(*about)


def scaling(text: str) -> Scaling | None:
    """The plain model's scaling of RoPE for the text of a field."""
    if text == "none":
        return None
    kind, *words = text.split(":")
    given = dict(word.split("=") for word in words)
    long = {"original": "original_max_position_embeddings"}
    long |= {"low": "low_freq_factor", "high": "high_freq_factor", "factor": "factor"}
    long |= {"all_dim": "mscale_all_dim"}
    return Scaling(kind, **{key: float(given[name]) for key, name in long.items() if name in given})


def family(gpt: GPT, run: int = 0, cut: tuple[int, int] = (1, 1)) -> Family:
    return Family(
        **{key: gpt.value(key) for key in OF_FAMILY},
        run=run,
        cut=cut,
        rmsnorm=gpt.norm == "rmsnorm",
        eps=gpt.norm_eps,
        rope_base=gpt.attention.rope_base if gpt.positions == "rope" else None,
        rope_scaling=scaling(gpt.attention.rope_scaling),
        router_groups=(gpt.moe.router_groups, gpt.moe.router_topk_groups),
        balanced_run=balanced_run(gpt, run),
        clamped=gpt.activation == "clamped_swiglu",
        alibi=gpt.positions == "alibi",
        squared_relu=gpt.activation == "squared_relu",
        mamba=mamba(gpt),
        depths=depths(gpt),
        documents=documents.lengths(gpt.packing.documents) if gpt.packing.documents else (),
    )


def balanced_run(gpt: GPT, run: int) -> int:
    """Of how many tokens experts should be chosen evenly; 0 where there is no such loss."""
    own = run if gpt.moe.balance_over == "micro_batch" else gpt.sequence
    return own if gpt.moe.balance_loss else 0


@cache
def reference(
    gpt: GPT, sequences: int = BATCH, run: int = 0, cut: tuple[int, int] = (1, 1)
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The plain model's losses and last weights, its gradients clipped in some step. Experts take
    no more than their capacity of each `run` of tokens, as sequences are `cut`."""
    pairs = [(batch[:, :-1], batch[:, 1:]) for batch in batches(gpt, sequences)]
    how = family(gpt, run, cut)
    trained = train(start(gpt), pairs, heads=gpt.attention.heads, lr=LR, clip=CLIP, family=how)
    assert max(trained.norms) > CLIP
    return trained.losses, trained.weights


def grids(ranks: int) -> list[tuple[int, ...]]:
    sizes = [n for n in range(1, ranks + 1) if ranks % n == 0]
    return [g for g in itertools.product(sizes, repeat=4) if torch.tensor(g).prod() == ranks]


def plan_of(grid: tuple[int, ...], overlap: bool, recompute: str, micro_batches: int) -> Plan:
    x, y, z, data = grid
    return Plan.of(
        tp=x,
        y=y,
        z=z,
        dp=data,
        batch=BATCH,
        mbs=BATCH // (z * data * micro_batches),
        recompute=recompute,
        overlap=OVERLAPS if overlap else (),
        precision="fp64",
    )


def every_plan(ranks: int) -> Iterator[Plan]:
    for grid in grids(ranks):
        for options in itertools.product((False, True), ("none", "full"), (1, 2)):
            yield plan_of(grid, *options)


def sample(ranks: int, first: int = 0) -> list[Plan]:
    """Every grid once, and over the grids every combination of the other options in turn.

    `first` is the combination that the first grid gets.
    """
    options = itertools.cycle(itertools.product((True, False), ("none", "full"), (2, 1)))
    pairs = zip(grids(ranks), itertools.islice(options, first, None), strict=False)
    return [plan_of(grid, *chosen) for grid, chosen in pairs]


def differences(
    rank: int,
    gpt: GPT,
    plans: list[Plan],
    swap: Mapping[str, str] = MappingProxyType({}),
    groups: ProcessGroups | None = None,
    ranks_of_node: int = 0,
) -> list[tuple[float, float]]:
    """On rank 0 for each plan the largest relative error of losses and of weights.

    The plain model is trained there alone, and once for all plans. `swap` is the matmul form to
    take for another, as in {"TN": "NN"}.
    """
    groups = groups or ProcessGroups(rank, TIMEOUT_S, ranks_of_node)
    found = []
    for plan in plans:
        forms = swapped(gpt, plan, swap)
        program = lower(gpt, plan, plan.grid.coordinates(rank)["pp"], forms=forms)
        device = torch.device("cpu")
        trainer = Trainer(program, groups, rank=rank, device=device, adamw=ADAMW)
        whole = start(gpt)
        trainer.start_from((name, whole[name]) for name in program.layouts)
        run = trainer.run(batches(gpt, plan.batch))
        assert [span.op.name for span in run.timeline.spans] == [op.name for op in program.ops]
        assert run.carried == program.comm_bytes
        if not any(buffer.rows_of for buffer in program.buffers.values()):
            assert run.peak_bytes >= program.peak.total_bytes
        cut = (plan.cp, plan.mbs) if gpt.moe.capacity else (1, 1)
        rows = routed_rows(gpt, plan)
        losses, weights = ([], {}) if rank else reference(gpt, plan.batch, rows, cut)
        pairs = zip(run.steps, losses, strict=rank == 0)
        loss_error = max((abs(step.loss - loss) / loss for step, loss in pairs), default=0.0)
        found.append((loss_error, _weight_error(trainer, weights)))
    return found


def routed_rows(gpt: GPT, plan: Plan) -> int:
    """How many tokens a rank routes at once, of which experts drop what is beyond their capacity;
    0 where none is dropped."""
    whole = plan.mbs * gpt.sequence
    if gpt.moe.balance_loss and gpt.moe.balance_over == "micro_batch":
        return whole
    return whole * plan.expert_parts // (plan.tp * plan.cp) if gpt.moe.capacity else 0


def _weight_error(trainer: Trainer, expected: dict[str, torch.Tensor]) -> float:
    """The worst of the whole weights on rank 0; 0 on the other ranks."""
    program = trainer.program
    held = {name: (trainer.table[name], layout) for name, layout in program.layouts.items()}
    errors = [
        float((whole - expected[name]).norm() / expected[name].norm())
        for name, whole in wholes(held, program.plan)
    ]
    return max(errors, default=0.0)


def check(ranks: int, gpt: GPT, plans: list[Plan], **swap: str) -> None:
    judge(ranks, plans, on_ranks(ranks, differences, gpt, plans, swap))


def judge(ranks: int, plans: list[Plan], found: list[tuple[float, float]]) -> None:
    """Fail where a plan's losses or weights are not the plain model's."""
    parity_cases.note(ranks, plans, found)
    wrong = [
        (str(plan), plan.training.overlap, errors)
        for plan, errors in zip(plans, found, strict=True)
        if max(errors) > TOLERANCE
    ]
    assert wrong == []


@pytest.mark.distributed
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_axis_and_two_of_them_train_as_the_plain_model_does(ranks: int) -> None:
    """Of four ranks x and z; all grids are in the slow set below."""
    plans = sample(ranks)
    check(ranks, TINY, plans[7:8] if ranks == 4 else plans)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("ranks", [4, 8])
def test_every_grid_trains_as_the_plain_model_does(ranks: int) -> None:
    check(ranks, TINY, sample(ranks))


@pytest.mark.distributed
def test_an_untied_classifier_trains_as_the_plain_model_does() -> None:
    check(2, replace(TINY, tied=False), [plan_of((1, 2, 1, 1), True, "full", 2)])


def losses_of(
    rank: int, gpt: GPT, plans: list[Plan], texts: list[torch.Tensor]
) -> list[list[float]]:
    """The losses of each plan, step by step over the batches given."""
    groups, found = ProcessGroups(rank, TIMEOUT_S), []
    for plan in plans:
        device = torch.device("cpu")
        program = lower(gpt, plan)
        trainer = Trainer(program, groups, rank=rank, device=device, adamw=ADAMW)
        trainer.start_from(start(gpt).items())
        found.append([step.loss for step in trainer.run(texts).steps])
    return found


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_every_plan_trains_as_the_plain_model_does(ranks: int) -> None:
    check(ranks, TINY, list(every_plan(ranks)))
