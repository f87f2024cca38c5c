"""The peak of a step whose rows went where the routing sent them."""

from __future__ import annotations

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
