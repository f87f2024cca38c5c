"""What of a rank a checkpoint keeps, and its way back into the buffers of another plan.

Kept are, for each parameter, the tensor that the optimizer trains (the master copy where there is
one: the parameter in the compute precision follows from it) and the optimizer's states. Each is a
part of a whole tensor, cut as a `Layout` says. Of ranks that hold the same part the one with the
lowest coordinates writes it. Gradients, activations and batches are made anew in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from executor.buffer_table import BufferTable
from executor.weights import cut, join
from topologies.records import record
from workload.grid import WITHIN_STAGE, Grid
from workload.layout import Layout
from workload.pipeline.schedule import ways
from workload.program import Program

MASTER = ".master"


@record
class Kept:
    """A tensor of a checkpoint: the buffer that a rank holds its part in, and how it is cut."""

    name: str
    buffer: str
    layout: Layout
    is_master: bool = False


@record
class Saved:
    """A tensor as a checkpoint has it: its layout on the grid that wrote it, and how a rank's part
    is read."""

    layout: Layout
    grid: Grid
    ranks: tuple[int, ...]
    read: Callable[[int], torch.Tensor]

    def part(self, layout: Layout, grid: Grid, rank: int) -> torch.Tensor:
        """What a rank of another grid holds of it, or of the same: then nothing else is read."""
        if (layout, grid) == (self.layout, self.grid):
            return self.read(_in_same_stage(self.ranks, writer(layout, grid, rank), grid))
        parts = {each: self.read(each) for each in self.ranks}
        return cut(join(parts, self.layout, self.grid), layout, grid, rank)


def kept_of(program: Program) -> Iterator[Kept]:
    """What a rank of this program keeps, in the order of its parameters."""
    masters = set()
    for name, layout in program.layouts.items():
        master = f"{name}{MASTER}"
        if master in program.buffers:
            masters.add(master)
            yield Kept(name, master, program.states[name], is_master=True)
        else:
            yield Kept(name, name, layout)
    for buffer in program.buffers.values():
        if buffer.is_state and buffer.name not in masters:
            yield Kept(buffer.name, buffer.name, program.states[buffer.parameter])


def writer(layout: Layout, grid: Grid, rank: int) -> int:
    """Of the ranks of a stage that hold the same part as this one, the one that writes it."""
    used = grid.dimensions(*(axis for axes in (*layout.split, layout.flat) for axis in axes))
    at = grid.coordinates(rank)
    kept = {"pp": at["pp"]}
    for axis in WITHIN_STAGE:
        kept[axis], neighbours = 0, 1
        for part in grid.parts_of_axis(axis):
            kept[axis] += at[part] * neighbours if part in used else 0
            neighbours *= grid.size(part)
    return grid.rank(kept)


def written_by(program: Program, rank: int) -> list[Kept]:
    """What this rank writes; of two copies of the model that of the first half of the stages."""
    grid = program.plan.grid
    if ways(program.plan.pipeline.schedule) > 1 and program.stage >= grid.pp // 2:
        return []
    return [kept for kept in kept_of(program) if writer(kept.layout, grid, rank) == rank]


def misfit(program: Program, saved: Mapping[str, Layout]) -> str:
    """The first tensor of a rank that a checkpoint lacks, or has in another shape; none: empty."""
    for each in kept_of(program):
        if each.name not in saved:
            return f"has no {each.name}"
        shape = saved[each.name].shape
        if shape != each.layout.shape:
            was, needed = (" x ".join(map(str, of)) for of in (shape, each.layout.shape))
            return f"has {each.name} of {was}, and this run needs {needed}"
    return ""


def snapshot(kept: list[Kept], table: BufferTable) -> dict[str, torch.Tensor]:
    """Copies in the host's memory, which training does not change any more."""
    found = {}
    for each in kept:
        held = table[each.buffer].detach()
        found[each.name] = torch.empty(held.shape, dtype=held.dtype).copy_(held)
    return found


def restore(table: BufferTable, program: Program, rank: int, saved: Mapping[str, Saved]) -> None:
    """Fill a rank's parameters, master copies and states."""
    grid = program.plan.grid
    for each in kept_of(program):
        source = saved[each.name]
        table[each.buffer].copy_(source.part(each.layout, grid, rank))
        if each.is_master:
            table[each.name].copy_(source.part(program.layouts[each.name], grid, rank))


def _in_same_stage(ranks: tuple[int, ...], rank: int, grid: Grid) -> int:
    """That rank, or the one at its place in another stage which wrote the same tensor first."""
    if rank in ranks:
        return rank
    at = {**grid.coordinates(rank)}
    places = (grid.rank({**at, "pp": stage}) for stage in range(grid.pp))
    return next(place for place in places if place in ranks)
