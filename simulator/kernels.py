"""How a framework's kernels differ from one kernel for every op of a program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kernels:
    """What a software stack makes of a program's ops on a device.

    Ops of the kinds in `fused` run inside a neighbour's kernel and take no time of their own.
    `host_s` is the least time between two kernels that the host issues one by one; 0 where it is
    never the bottleneck. With `fp8` the linears' matmuls run at the device's fp8 rate, their
    operands cast before. `attention_work` scales fused attention, for a plan that gives a device
    part of a sequence's queries but all its keys.
    """

    fused: tuple[str, ...] = ()
    host_s: float = 0.0
    fp8: bool = False
    attention_work: float = 1.0


PLAIN = Kernels()
