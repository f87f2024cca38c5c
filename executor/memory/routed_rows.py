"""A step whose rows went where the routing sent them: its peak, and how uneven they are."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace

from executor.buffer_table import BufferTable
from workload.program import Program


def peak_of_rows(program: Program, table: BufferTable) -> int | None:
    """Bytes at the program's fullest op, with as many rows at this rank's experts as came in the
    last step; None where no number of rows depends on data. The program itself counts their mean.
    """
    if not any(buffer.rows_of for buffer in program.buffers.values()):
        return None
    came = replace(program, like=program.outline, known_nbytes=table.sizes)
    return came.peak.total_bytes


def rows_over_mean(program: Program, table: BufferTable) -> dict[str, float]:
    """For each routing of the last step, by the buffer that counts its rows, how many rows came to
    this rank's experts, over the mean of all ranks."""
    sizes = zip(program.buffers.values(), table.sizes, strict=True)
    plain = ((each, size) for each, size in sizes if each.rows_of and each.rows_in == (1, 0))
    return {each.rows_of: size / each.nbytes for each, size in plain}


def most_over_mean(ranks: Iterable[Mapping[str, float]]) -> float | None:
    """The mean over all routings of what `rows_over_mean` has of the rank with most rows, which the
    others wait for; None without routings."""
    most: dict[str, float] = {}
    for found in ranks:
        for routing, share in found.items():
            most[routing] = max(share, most.get(routing, 0.0))
    return statistics.fmean(most.values()) if most else None
