"""The least time of a matmul of experts that has so many rows or more.

Layers whose experts are chosen differently are all counted as the least uneven of them
(`uneven_layers.py`), so that a layer's busiest rank has as many rows as an op of the bounds,
or more. A grouped matmul of few rows may take longer than one of more: of T rows of `count` experts
the work grows with T, and the rate with k = ceil(T / count), by factors k / (k + a)
(`simulator/costs/analytic.py`, matmul_s). More than (factors - 1) times the largest a, the time
grows with k, since the sum of k / (k + a) is above factors - 1 there. Up to there each k is tried,
with the fewest rows that it can have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from simulator.costs.analytic import GROUPED
from simulator.search.asked.uneven_layers import are_different
from topologies.hardware.device import Device
from workload.gpt import GPT
from workload.op import Op
from workload.op_attributes import Attributes

Seconds = Callable[[Op], float]
FACTORS = 3  # of rates that grow with the rows


def seconds_of(gpt: GPT, device: Device, seconds: Seconds) -> Seconds:
    """How long ops of bounds take at least in any layer of a model."""
    if not are_different(gpt):
        return seconds

    def least(op: Op) -> float:
        return least_seconds(seconds, device, op)

    return least


def least_seconds(seconds: Seconds, device: Device, op: Op) -> float:
    """The least time of an op with as many rows as it has, or more."""
    if op.kind != GROUPED or op.attributes["even"]:
        return seconds(op)
    model = device.matmul
    letter: Literal["m", "k"] = "k" if op.attributes["form"] == "TN" else "m"
    shares = (model.k0, model.fp8_k0) if letter == "k" else (model.m0,)
    rows, count = int(op.attributes[letter]), int(op.attributes["count"])
    if not rows:
        return seconds(op)
    # Of one product of k rows, of which each expert but one may have one less.
    flops = op.flops // (rows * count)
    last = max(int((FACTORS - 1) * max(*shares, model.grouped)), rows + 1)

    def of(k: int) -> Op:
        how: Attributes = {**op.attributes}
        how[letter] = k
        return replace(op, flops=flops * (count * (k - 1) + 1), attributes=how)

    return min(seconds(op), *(seconds(of(k)) for k in range(rows + 1, last + 1)))
