"""One rank's program played through the executor without its machine, and compared with itself.

`play_rank` walks the ops with the code that a real rank walks them with: its order of issue, buffer
table, kernels and calls of torch.distributed. Storages are counted (`storages.py`) and calls noted
(`calls.py`) by what torch is asked for; after each op they are compared with what the program says.

A kernel is a function of its op's attributes and its operands' shapes, so each distinct one is
played once; of others like it the operands alone are made and freed. Cost: some 0.1 ms for each
buffer that begins and each call. Not played: values, and so nothing that depends on them; experts
get even shares of the rows, as in the program.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from executor.buffer_table import BufferTable
from executor.collectives import Waitable
from executor.dry.calls import AskedCalls, expected
from executor.dry.fake_gpu import GPU, fake_gpu
from executor.dry.groups import LoneGroups, fake_job
from executor.dry.storages import StorageCount
from executor.kernels import Kernel
from executor.launching.task_specs import AdamW
from executor.nccl.issue_order import issue_order
from executor.play import play
from executor.prepared import Computation, PreparedOp, PreparedProgram, prepare
from executor.rank_context import DTYPES, RankContext, scratch_of
from workload.op import HOST, Op
from workload.op_attributes import Attributes
from workload.program import Program
from workload.timeline import Timeline

PLACES = ("place", "shares")  # attributes that change values alone


@dataclass(slots=True, kw_only=True)
class PlayedRank:
    """What one rank's step asked of torch. `kernels` are the distinct ones that were played,
    `scratch_bytes` what they may hold beside their operands; `counted_bytes` is the most that
    buffers took, `program_bytes` the program's peak, and `most_bytes` what kernels' temporaries
    bring it to.

    `difference` says where what was asked for first differs from the program; "" is nowhere.
    """

    rank: int
    stage: int
    ops: int
    kernels: int
    groups: int
    calls: int
    carried: dict[str, int]
    counted_bytes: int
    program_bytes: int
    most_bytes: int
    scratch_bytes: int
    difference: str
    seconds: float


def play_rank(program: Program, rank: int) -> PlayedRank:
    """Play a step of one rank, whose stage's program it is, as on a GPU."""
    started = time.perf_counter()
    grid, peak_bytes = program.plan.grid, program.peak.total_bytes
    scratch = scratch_of(peak_bytes, GPU)
    at = RankContext(grid=grid, rank=rank, device=GPU, adamw=AdamW(), scratch=scratch)
    groups, order = LoneGroups(rank), issue_order(program, late=True)
    with fake_job(rank, grid.ranks), fake_gpu(), StorageCount() as held, AskedCalls(rank) as calls:
        groups.prepare(program)
        table = BufferTable(program, GPU, even_rows=True)
        once = KernelsOnce(held)
        prepared = once.of(prepare(program, table, groups, at, order))
        checks = Checks(program, rank, table=table, held=held, calls=calls)
        carried = play(prepared, table, at, checks)
        checks.check_end(carried)
    return PlayedRank(
        rank=rank,
        stage=program.stage,
        ops=len(program.ops),
        kernels=len(once.extra_bytes),
        groups=groups.count,
        calls=checks.calls_made,
        carried=carried,
        counted_bytes=checks.peak_bytes,
        program_bytes=peak_bytes,
        most_bytes=_most_bytes(program, once),
        scratch_bytes=scratch,
        difference=checks.difference,
        seconds=time.perf_counter() - started,
    )


def _most_bytes(program: Program, once: KernelsOnce) -> int:
    """The most that is held in any op with its kernel's temporaries."""
    held = zip(program.ops, program.memory, strict=True)
    return max(use.total_bytes + once.extra_of(op) for op, use in held)


class KernelsOnce:
    """Plays the first of all kernels that are alike, and knows what each held beside its operands
    (`extra_bytes`)."""

    def __init__(self, held: StorageCount) -> None:
        self._held = held
        self._key_of: dict[str, object] = {}
        self.extra_bytes: dict[object, int] = {}

    def of(self, program: PreparedProgram) -> PreparedProgram:
        """A prepared program whose kernels are played once. None has a stream of its own: there is
        no device on which it would run beside another. All experts get equally many rows."""
        return replace(program, ops=tuple(map(self._of_one, program.ops)))

    def _of_one(self, op: PreparedOp) -> PreparedOp:
        if isinstance(op.work, Computation):
            kernel = self._once(op.work.kernel)
            return replace(op, work=replace(op.work, kernel=kernel, side_stream=""))
        return replace(op, work=replace(op.work, counts=()))

    def extra_of(self, op: Op) -> int:
        """The bytes that an op's kernel held beside its operands."""
        key = self._key_of.get(op.name)
        return 0 if key is None else self.extra_bytes[key]

    def _once(self, kernel: Kernel) -> Kernel:
        def played(
            op: Op, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor], at: RankContext
        ) -> None:
            key = _key(op, reads, writes)
            self._key_of[op.name] = key
            if key not in self.extra_bytes:
                before = self._held.most_bytes = self._held.held_bytes["cuda"]
                kernel(_of_even_rows(op), reads, writes, at)
                self.extra_bytes[key] = self._held.most_bytes - before

        return played


def _of_even_rows(op: Op) -> Op:
    """An op whose experts, if it has any, get equally many rows, whatever their counts say. A cast
    takes rows that are `even` for weights, so it is told how many `each` expert gets."""
    how = op.attributes
    if how.get("even", True):
        return op
    own: Attributes = {**how, "even": op.kind != "quantise"}
    if "align" in how:
        own["each"] = how[_rows_key(op)]
    return replace(op, attributes=own)


def _rows_key(op: Op) -> Literal["rows", "m", "k"]:
    """Which attribute has the expected rows of one expert."""
    if op.kind == "quantise":
        return "rows"
    return "k" if op.attributes["form"] == "TN" else "m"


def _key(op: Op, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]) -> object:
    how = tuple(pair for pair in sorted(op.attributes.items()) if pair[0] not in PLACES)
    operands = tuple((tensor.shape, tensor.dtype) for tensor in (*reads, *writes))
    return op.kind, how, len(reads), operands


@dataclass(slots=True)
class Checks:
    """Stands where a step's recorder stands, and compares each op with the program once it is
    issued, before the buffers that it was the last to need are freed."""

    program: Program
    rank: int
    table: BufferTable = field(kw_only=True)
    held: StorageCount = field(kw_only=True)
    calls: AskedCalls = field(kw_only=True)
    peak_bytes: int = 0
    calls_made: int = 0
    difference: str = ""
    _levels: list[tuple[int, int]] = field(init=False)
    _front: int = field(default=0, init=False)
    _late_bytes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """What the program says is in use on the device and in the host's memory, op by op."""
        self._levels = [(use.total_bytes, use.parts[HOST]) for use in self.program.memory]

    def begin(self, index: int) -> None:
        """Nothing is compared yet."""

    def end(self, index: int) -> None:
        """A compute op, or a blocking collective, is through."""
        self._check(index)

    def track(self, index: int, stream: str, work: Waitable) -> None:
        """An asynchronous collective was issued."""
        self._check(index)

    def awaited(self, index: int) -> None:
        """Nothing is new then."""

    def timeline(self, program: Program, rank: int) -> Timeline:
        """Nothing took any time."""
        return Timeline("dry", ())

    def check_end(self, carried: dict[str, int]) -> None:
        """Compare what all collectives and messages carried."""
        if carried != self.program.comm_bytes:
            self._differs(f"the step carried {carried}, the program {self.program.comm_bytes}")

    def _check(self, index: int) -> None:
        op = self.program.ops[index]
        self._check_bytes(index)
        self._check_shapes(op)
        self._check_calls(op)

    def _check_bytes(self, index: int) -> None:
        """On a GPU a receive is issued later than the program lists it: until then its buffer is
        not there."""
        held, program = self.held.held_bytes, self.program
        self.peak_bytes = max(self.peak_bytes, held["cuda"])
        if index < self._front:
            self._late_bytes -= _written_bytes(program, index)
            return
        self._late_bytes += sum(_written_bytes(program, i) for i in range(self._front, index))
        self._front = index + 1
        device_bytes, host_bytes = self._levels[index]
        pairs = (held["cuda"], device_bytes - self._late_bytes), (held["cpu"], host_bytes)
        for (found, said), where in zip(pairs, ("GPU", "host"), strict=True):
            if found != said:
                name = program.ops[index].name
                self._differs(f"{name} holds {found:,} bytes ({where}), the program {said:,}")

    def _check_shapes(self, op: Op) -> None:
        for name in op.writes:
            tensor, buffer = self.table[name], self.program.buffers[name]
            if (tensor.shape, tensor.dtype) != (buffer.shape, DTYPES[buffer.dtype]):
                self._differs(
                    f"{op.name} leaves {name} as {tuple(tensor.shape)} of {tensor.dtype}, "
                    f"the program as {buffer.shape} of {buffer.dtype}"
                )

    def _check_calls(self, op: Op) -> None:
        asked = self.calls.taken()
        self.calls_made += len(asked)
        if not op.communicates:
            if asked:
                self._differs(f"{op.name} asked torch for {asked[0]}, and should for nothing")
            return
        together = {(one.kind, one.ranks) for one in asked}
        total = sum(one.nbytes for one in asked)
        said = expected(op, self.program.plan.grid, self.rank)
        wanted = {(one.kind, one.ranks) for one in said}
        if together != wanted or total != sum(one.nbytes for one in said):
            found, told = (" and ".join(map(str, each)) or "nothing" for each in (asked, said))
            self._differs(f"{op.name} asked torch for {found}, the program says {told}")

    def _differs(self, how: str) -> None:
        self.difference = self.difference or how


def _written_bytes(program: Program, index: int) -> int:
    return sum(program.buffers[name].nbytes for name in program.ops[index].writes)
