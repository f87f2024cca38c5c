"""Every kernel with operands as a step gives them, so that one can run again on another device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch

from executor.buffer_table import BufferTable
from executor.data.batches import share
from executor.kernels import KERNELS, Kernel
from executor.kernels.context.positions import of_rank
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from executor.weights import initial_values, load
from tests.forms import swapped
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.op import Op
from workload.plan import Plan
from workload.program import Program

CPU = torch.device("cpu")
# Wide enough heads for every attention kernel of a GPU, and a vocabulary that needs padding.
SMALL = find_model("tiny-30k").changed(hidden=64, heads=4, ffn=256, sequence=32, vocab=250)
LLAMA = SMALL.changed(
    norm="rmsnorm",
    activation="swiglu",
    positions="rope",
    biases=False,
    tied=False,
    kv_heads=2,
    qk_norm=True,
)
BLOOM = replace(SMALL, positions="alibi", embedding_norm=True)
MIXTURE = LLAMA.changed(experts=4, topk=2, expert_ffn=32, shared_ffn=32, router="softmax-topk")
LATENT = LLAMA.changed(
    qk_norm=False, kv_heads=0, kv_rank=32, q_rank=16, rope_width=8, value_width=24
)
OSS = MIXTURE.changed(
    shared_ffn=0, qk_norm=False, biases=True, sinks=True, activation="clamped_swiglu"
)
BALANCED = MIXTURE.changed(router="sigmoid", router_bias=True, balance_loss=0.1, mtp_layers=1)
HYBRID = MIXTURE.changed(
    layers=3,
    qk_norm=False,
    pattern="M-E",
    activation="squared_relu",
    positions="none",
    ssm_heads=4,
    ssm_width=16,
    ssm_state=8,
    ssm_groups=2,
    ssm_chunk=16,
)
CONTEXT_KINDS = ("ring", "all_gather", "ulysses")
DROPPING = replace(SMALL, dropout=0.1)
UNLIKE = {"attention": 1}  # outputs that count; of the sums that attention keeps, kernels differ
# Rounding of sums in another order, relative to the size of what is summed.
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}


@dataclass(frozen=True)
class Case:
    """An op with what it read and found in its outputs, and what it left there, by name."""

    op: Op
    place: RankContext
    before: Mapping[str, torch.Tensor]
    after: Mapping[str, torch.Tensor]


def cases(precision: str) -> dict[str, Case]:
    """A case of every kind of op (and of every form of a matmul) that steps of a precision have."""
    found: dict[str, Case] = {}
    for gpt, plan, forms, stage in plans_of_every_kind(precision):
        swap = {"TN": "NN", "NT": "TN", "NN": "NT"} if forms else {}
        rehearse(lower(gpt, plan, stage, forms=swapped(gpt, plan, swap)), found)
    return found


@cache
def cases_once(precision: str) -> Mapping[str, Case]:
    """The cases of a precision, made once for all tests of a process."""
    return cases(precision)


def plans_of_every_kind(precision: str) -> Iterator[tuple[GPT, Plan, bool, int]]:
    """Models and plans in whose programs every kind of op is; whether matmuls take other forms, and
    a stage."""
    plain = Plan.of(batch=4, mbs=2, precision=precision)
    yield SMALL, plain, False, 0
    yield LLAMA.changed(output_gate=True), plain.changed(recompute="full"), False, 0
    yield BLOOM, plain.changed(offload="optimizer"), False, 0
    yield BLOOM, plain.changed(offload="update"), False, 0
    sharded = plain.changed(dp=2, zero=3, mbs=1, overlap=())
    yield BLOOM, sharded.changed(offload="parameters"), False, 0
    yield DROPPING, plain.changed(attention="unfused"), False, 0
    yield SMALL, plain.changed(matmul_forms="tuned"), True, 0
    yield SMALL, replace(plain, tp=2, y=2, z=2, mbs=1), False, 0
    yield LLAMA, replace(plain, y=2, dp=2, zero=2, mbs=1), False, 0
    yield LLAMA, replace(plain, tp=2, sp=True), False, 0
    yield SMALL, replace(plain, tp=2, sp=True), False, 0
    yield SMALL, replace(plain, pp=2), False, 0
    yield SMALL, plain.changed(loss="fused"), False, 0
    yield SMALL, plain.changed(tp=2, dp=2, mbs=1, optimizer="muon"), False, 0
    yield SMALL, plain.changed(dp=2, mbs=1, optimizer="fedkseed-step"), False, 0
    for rule, sequences in (("sgd", 2), ("sgd-momentum", 2), ("lomo", 4)):
        yield SMALL, plain.changed(optimizer=rule, mbs=sequences), False, 0
    for kind in CONTEXT_KINDS:
        yield LLAMA, plain.changed(cp=2, context_kind=kind), False, 0
    yield LATENT, plain, False, 0
    gathered = plain.changed(cp=2, context_kind="all_gather", context_latents=True)
    yield LATENT, gathered, False, 0
    for recipe in ("fp8-delayed", "fp8-tensorwise"):
        yield SMALL, plain.changed(recipe=recipe), False, 0
    two = replace(plain, dp=2, mbs=1, ep=2)
    yield MIXTURE, two, False, 0
    yield MIXTURE.changed(activation="gelu", capacity=0.5, router="sigmoid"), two, False, 0
    yield MIXTURE, two.changed(dispatcher="all_gather"), False, 0
    yield MIXTURE, two.changed(optimizer="muon"), False, 0
    for dispatcher in ("sparse", "dense"):
        yield MIXTURE.changed(capacity=1.0), two.changed(dispatcher=dispatcher), False, 0
    yield OSS.changed(window=5, global_every=2), two, False, 0
    yield OSS, two.changed(recipe="mxfp8", fp8_dispatch=True), False, 0
    yield OSS.changed(experts=0, topk=0, expert_ffn=0, router="softmax"), plain, False, 0
    yield BALANCED.changed(router_groups=2, router_topk_groups=1), two, False, 0
    yield replace(SMALL, goldfish_k=3, goldfish_h=2), plain, False, 0
    yield HYBRID, two, False, 0


def rehearse(program: Program, found: dict[str, Case]) -> None:
    """Perform the compute ops of a step on the CPU, as rank 0 of a stage, and add a case of each
    kind that there is none of.

    There are no other ranks: what would come from them is made of this rank's own values.
    """
    grid, table = program.plan.grid, BufferTable(program, CPU)
    rank = grid.rank({"pp": program.stage})
    at = RankContext(grid=grid, rank=rank, device=CPU, adamw=AdamW(lr=0.1, clip=0.1), seed=3)
    load(table, program, rank, initial_values(program, 0))
    _feed(program, table, at)
    alive = {name for name, buffer in program.buffers.items() if buffer.persistent}
    for op, gone in zip(program.ops, program.releases, strict=True):
        name = f"{op.kind} {op.attributes.get('form', '')}".strip()
        for written, slot in zip(op.writes, table.slots(op.writes), strict=True):
            if written not in alive:
                table.begin(slot)
                table[written].zero_()  # some ops write a part of it
        alive = alive.union(op.writes).difference(gone)
        if op.communicates:
            _stand_in(op, table)
        elif name in found:
            writes = [table[written] for written in op.writes]
            KERNELS[op.kind](op, [table[read] for read in op.reads], writes, at)
        else:
            found[name] = _case(op, table, at)
        for freed in table.slots(gone):
            table.free(freed)


def _case(op: Op, table: BufferTable, at: RankContext) -> Case:
    reads = [table[name] for name in op.reads]
    writes = [table[name] for name in op.writes]
    named = dict(zip((*op.reads, *op.writes), (*reads, *writes), strict=True))
    before = {name: tensor.clone() for name, tensor in named.items()}
    KERNELS[op.kind](op, reads, writes, at)
    return Case(op, at, before, {name: named[name].clone() for name in op.writes})


def _feed(program: Program, table: BufferTable, at: RankContext) -> None:
    gpt, plan = program.gpt, program.plan
    generator = torch.Generator().manual_seed(7)
    batch = torch.randint(gpt.vocab, (plan.batch, gpt.sequence + 1), generator=generator)
    for m in range(plan.micro_batches):
        mine = share(batch, plan, at, m)
        for name, part in (("tokens", mine[:, :-1]), ("targets", mine[:, 1:])):
            if f"m{m}.{name}" in program.buffers:
                table[f"m{m}.{name}"].copy_(of_rank(part, at).reshape(-1))


def _stand_in(op: Op, table: BufferTable) -> None:
    for source, target in table.pairs(table.slot_pairs(op)):
        if op.kind == "recv":
            target.normal_(generator=torch.Generator().manual_seed(5))
        elif op.kind in ("all_gather", "reduce_scatter", "all_to_all", "ring_shift"):
            own = source.reshape(-1)
            copies = max(target.numel() // own.numel(), 1)
            target.view(-1).copy_(own.repeat(copies)[: target.numel()])


def worst(case: Case, device: torch.device, kernel: Kernel | None = None) -> float:
    """The largest difference of an output from the CPU's, relative to its norm, on a device."""
    tensors = {name: tensor.to(device, copy=True) for name, tensor in case.before.items()}
    reads, writes = ([tensors[n] for n in names] for names in (case.op.reads, case.op.writes))
    run = kernel or KERNELS[case.op.kind]
    run(case.op, reads, writes, replace(case.place, device=device))
    names = case.op.writes[: UNLIKE.get(case.op.kind, len(case.op.writes))]
    return max((_difference(tensors[n].cpu(), case.after[n]) for n in names), default=0.0)


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    found, expected = found.double(), expected.double()
    size = float(expected.norm()) or 1.0
    difference = float((found - expected).norm()) / size
    return difference if found.isfinite().all() else float("inf")
