"""OAR: sums of input gradients run beside the matmul of the weight's gradient."""

from __future__ import annotations

from collections.abc import Sequence

from workload.moving import on_own_stream
from workload.op import Op
from workload.overlaps import OAR


def overlap_input_gradients(ops: Sequence[Op]) -> list[Op]:
    """The all-reduce of dI runs beside the weight-gradient matmul issued right after it.

    Where rows are split over x it is a reduce-scatter, and the all-gather of the linear's input
    runs beside the matmul of dI before.
    """
    return [on_own_stream(op) if op.purpose in OAR.purposes else op for op in ops]
