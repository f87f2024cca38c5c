"""What torch allocates for plans, beside what their programs say: `python -m tests.executor.peaks`.

Any rank of a plan is played by one process: collectives go to torch's fake backend, which moves
nothing, and memory does not depend on what a tensor holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate

import torch
import torch.distributed as dist
from torch.autograd.profiler import profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from executor.groups import ProcessGroups
from executor.launching.task_specs import AdamW
from executor.timing import HostRecorder
from executor.train import Trainer
from tests.executor.covering import Case, Row, case, covering
from tests.executor.ranks import TIMEOUT_S
from tests.executor.rehearsal import plans_of_every_kind
from workload.dataflow import retired_at
from workload.gpt import GPT
from workload.lowering import lower
from workload.op import COMPUTE, HOST
from workload.plan import Plan
from workload.program import Program

CPU = torch.device("cpu")
# How much wider and longer than those of parity the models are, and fuller the batches. Wider are
# they by more heads: what attention in single steps holds for one of them is of no account then.
WIDER, LONGER, FULLER = 8, 8, 2
MORE_HEADS = 4
# Fields that say how large a model is: none of them decides which ops there are, unless it is 0.
# Sequences stay as long: scores of one head, which attention holds, grow with their square.
WIDENED, MORE_SEQUENCES = 4, 8
WIDTHS = (
    *("hidden", "heads", "kv_heads", "ffn"),
    *("expert_ffn", "shared_ffn", "q_rank", "kv_rank", "ssm_heads"),
)
MARK = 7_000_021  # bytes: no buffer has just so many


@dataclass(frozen=True, slots=True)
class Peak:
    """A stage's program: the peak that it says, and the one that torch's allocator held."""

    program: Program
    allocated_bytes: int

    @property
    def excess(self) -> float:
        """By which share the allocator held more than the program says."""
        return self.excess_bytes / max(in_use(self.program))

    @property
    def excess_bytes(self) -> int:
        """How much more than the program says the allocator held."""
        return self.allocated_bytes - max(in_use(self.program))


def in_use(program: Program) -> list[int]:
    """Bytes in use during each op where device and host share an allocator, as on a CPU. What the
    host keeps between steps is left out: it is allocated before the first one."""
    buffers = program.buffers.values()
    kept = sum(b.nbytes for b in buffers if b.persistent and b.role == HOST)
    return [use.total_bytes + use.parts[HOST] - kept for use in program.memory]


def peaks(gpt: GPT, plan: Plan) -> Iterator[Peak]:
    """The peaks of the first rank of each stage."""
    for trainer in trainers(gpt, plan):
        batch = torch.randint(gpt.vocab, (plan.batch, gpt.sequence + 1))
        allocated_bytes = trainer.run([batch]).peak_bytes
        yield Peak(_of_rows_that_came(trainer), allocated_bytes)


def _of_rows_that_came(trainer: Trainer) -> Program:
    """A trainer's program, experts' buffers of as many rows as came in the last step."""
    program = trainer.program
    return replace(program, like=program.outline, known_nbytes=trainer.table.sizes)


def with_copies(program: Program) -> int:
    """The peak of a program with what gloo adds: beside the ranks' own tensors it holds a copy of
    what an all-gather collects or a reduce-scatter is given, until that is awaited.

    Source: PyTorch 2.13, ProcessGroupGloo.cpp, `allgather` (one flat output) and
    `reduce_scatter_tensor_coalesced` (clones of the inputs).
    """
    copies = [0] * (len(program.ops) + 1)
    ends = retired_at(program.ops, program.waits)
    for index, op in enumerate(program.ops):
        if op.kind in ("all_gather", "reduce_scatter"):
            end = index if op.stream == COMPUTE else ends[index]
            copies[index] += op.nbytes
            copies[end + 1] -= op.nbytes
    held = zip(program.memory, accumulate(copies), strict=False)
    return max(use.total_bytes + copied for use, copied in held)


def excess_by_kind(gpt: GPT, plan: Plan) -> dict[str, int]:
    """For each kind of op the most bytes that were allocated during one beyond what the program
    says is in use during it, over the first rank of each stage."""
    found: dict[str, int] = {}
    for trainer in trainers(gpt, plan):
        measured = list(_allocated(trainer))
        program = _of_rows_that_came(trainer)
        said = in_use(program)
        lasting = [b for b in program.buffers.values() if b.persistent and b.role != HOST]
        constant = sum(buffer.nbytes for buffer in lasting)
        for index, allocated in measured:
            kind, excess = program.ops[index].kind, constant + allocated - said[index]
            found[kind] = max(found.get(kind, excess), excess)
    return found


def wide_case(row: Row, precision: str = "fp32", longer: int = LONGER) -> Case:
    """The model and plan of a row of the covering set, so large that fixed costs do not count."""
    gpt, plan = case(row)
    wide = gpt.changed(
        hidden=gpt.hidden * WIDER,
        ffn=gpt.ffn * WIDER,
        heads=gpt.attention.heads * MORE_HEADS,
        kv_heads=gpt.attention.kv_heads * MORE_HEADS,
        head_width=gpt.attention.head_width * WIDER // MORE_HEADS,
        sequence=gpt.sequence * longer,
    )
    fuller = replace(plan, batch=FULLER * plan.batch, mbs=FULLER * plan.mbs)
    return wide, fuller.changed(precision=precision)


def widened(gpt: GPT, plan: Plan) -> Case:
    """A model and a plan of `plans_of_every_kind`, so large that fixed costs do not count: of
    more sequences where several ranks share one."""
    widths = {name: WIDENED * gpt.value(name) for name in WIDTHS}
    sequences = MORE_SEQUENCES * plan.tp * plan.y
    fuller = replace(plan, batch=sequences * plan.batch, mbs=sequences * plan.mbs)
    return gpt.changed(**widths), fuller


class _Marks(HostRecorder):
    """Leaves a mark in the allocator's record wherever an op begins."""

    def begin(self, index: int) -> None:
        super().begin(index)
        torch.empty(MARK, dtype=torch.uint8)


def _allocated(trainer: Trainer) -> Iterator[tuple[int, int]]:
    """For each op the most bytes that were allocated during it, persistent buffers left out."""
    trainer.table.keeps_freed = False
    recorder = _Marks(len(trainer.program.ops))
    with profile(profile_memory=True) as profiler:
        trainer._play(trainer.place, recorder)
    events = [e.nbytes() for e in profiler.kineto_results.events() if e.name() == "[memory]"]
    index, held, most = -1, 0, 0
    for nbytes in events:
        if nbytes == MARK:
            if index >= 0:
                yield index, most
            index, most = index + 1, held
        elif nbytes != -MARK:
            held += nbytes
            most = max(most, held)
    yield index, most


class _Alone(ProcessGroups):
    """The groups of a rank whose others are not there to compare their programs with its own."""

    def check(self, program: Program, order: Sequence[int]) -> None:
        return


def trainers(gpt: GPT, plan: Plan) -> Iterator[Trainer]:
    """What trains on the first rank of each stage, one after the other."""
    for stage in range(plan.pp):
        rank = plan.grid.rank({**dict.fromkeys(("tp", "y", "z", "dp"), 0), "pp": stage})
        dist.init_process_group("fake", rank=rank, world_size=plan.grid.ranks, store=FakeStore())
        try:
            program = lower(gpt, plan, stage)
            yield Trainer(program, _Alone(rank, TIMEOUT_S), rank=rank, device=CPU, adamw=AdamW())
        finally:
            dist.destroy_process_group()


@cache
def rows_of_every_kind() -> list[Row]:
    """Few rows of the covering set in whose programs every kind of op of all of them is."""
    kinds = {number: _kinds(row) for number, row in enumerate(covering(8))}
    missing, chosen = set().union(*kinds.values()), []
    while missing:
        best = max(kinds, key=lambda number: (len(kinds[number] & missing), -number))
        chosen.append(covering(8)[best])
        missing -= kinds[best]
    return chosen


def _kinds(row: Row) -> set[str]:
    gpt, plan = case(row)
    return {op.kind for stage in range(plan.pp) for op in lower(gpt, plan, stage).ops}


def main() -> None:
    """Print the peaks of the covering set's plans, and what each kind of op took beyond what the
    program of a plan says."""
    torch.set_num_threads(1)
    for row in covering(8):
        gpt, plan = wide_case(row)
        worst = max(peaks(gpt, plan), key=lambda peak: abs(peak.excess))
        sizes = (worst.program.peak.total_bytes, worst.allocated_bytes)
        mebibytes = " ".join(f"{nbytes / 2**20:8.2f} MiB" for nbytes in sizes)
        print(f"{worst.excess:+7.2%} {mebibytes}  {row['model']} with {plan}", flush=True)
    for small, narrow, _, _ in plans_of_every_kind("fp32"):
        gpt, plan = widened(small, narrow)
        print(f"{gpt.name} with {plan}", flush=True)
        for kind, excess in sorted(excess_by_kind(gpt, plan).items()):
            print(f"{kind:24} {excess / 2**10:+9.1f} KiB", flush=True)


if __name__ == "__main__":
    main()
