"""What a sample's operands hold while it is timed: values that its kernel can work on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from executor.buffer_table import BufferTable
from workload.op import Buffer, Op
from workload.program import Program

# Tokens, experts and places, which every part of a table has; masks of ones and zeros.
BELOW = {"int64": 100, "uint8": 2}
# Which operand says how many rows each expert gets from each rank.
COUNTS = {"sort_rows": 1, "unsort_rows": 1, "grouped_matmul": 2}
Buffers = Mapping[str, Buffer]
# How many experts, or places of rows and scores, there are of which an op's last operand has
# numbers.
NUMBERED: Mapping[str, Callable[[Op, Buffers], int]] = {
    "places": lambda op, buffers: buffers[op.writes[1]].elements,
    "route_grad": lambda op, buffers: buffers[op.reads[1]].shape[1],
    "take_rows": lambda op, buffers: buffers[op.reads[0]].shape[0] * op.attributes["topk"],
    "sum_rows": lambda op, buffers: buffers[op.writes[0]].shape[0] * op.attributes["topk"],
    "take_scores": lambda op, buffers: buffers[op.reads[0]].elements,
    "put_scores": lambda op, buffers: buffers[op.writes[0]].elements,
}


def fill(program: Program, table: BufferTable) -> None:
    """Fill all that a program's ops read; of experts each gets equally many rows."""
    for buffer in program.buffers.values():
        if buffer.persistent:
            _fill(table[buffer.name], buffer.dtype)
    for op in program.ops:
        if op.kind in COUNTS:
            rows, counts = table[op.reads[0]], table[op.reads[COUNTS[op.kind]]]
            counts.fill_(len(rows) // len(counts))
            counts[0] += len(rows) % len(counts)
        elif op.kind in NUMBERED:
            count = NUMBERED[op.kind](op, program.buffers)
            table[op.reads[-1]].random_(0, min(count, BELOW["int64"]))


def _fill(tensor: torch.Tensor, dtype: str) -> None:
    """Positive values around 0.1: no kernel meets a zero, an overflow or a denormal on them.

    A GPU's clock depends on the values, so there they are random; a CPU's does not.
    """
    if dtype in BELOW:
        tensor.random_(0, BELOW[dtype])
    elif tensor.device.type == "cpu":
        tensor.fill_(0.1)
    else:
        tensor.uniform_(0.05, 0.15)
