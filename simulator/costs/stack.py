"""How a framework's kernels differ from one kernel for every op of a program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SoftwareStack:
    """What a software stack makes of a program's ops on a device.

    Ops of the kinds in `fused`, and those whose labels are in it, run inside a
    neighbour's kernel and take no time of their own.
    `host_s` is how long the host takes to issue one; 0 where it is never the bottleneck.
    `attention` has the shares of the peak that its fused attention reaches, forward and backward;
    None: those of the machine's file. With `fp8` the linears' matmuls run at the device's fp8 rate,
    their operands cast before. `attention_work` scales fused attention, for a plan that gives a
    device part of a sequence's queries but all its keys. `pace` is the rate of a framework's
    compute over that of its kernels one by one: what gaps between them and kernels that are not
    ours cost. `passes` has, for a kind of op that the stack makes of several kernels, how often as
    many bytes go through memory as through one fused kernel; `payloads`, for a kind of collective,
    how many bytes the stack sends for each of the program's, where it sends another dtype or sends
    more often. Neither changes the FLOPs and volumes that are counted. `launches` has, for a kind
    of op, how many kernels the host issues for it, where more than one. With `tabled` matmuls are
    interpolated in what was measured on the device and published.
    """

    fused: tuple[str, ...] = ()
    host_s: float = 0.0
    fp8: bool = False
    attention: tuple[float, float] | None = None
    attention_work: float = 1.0
    pace: float = 1.0
    passes: tuple[tuple[str, float], ...] = ()
    payloads: tuple[tuple[str, float], ...] = ()
    tabled: bool = False
    launches: tuple[tuple[str, int], ...] = ()


DEFAULT_STACK = SoftwareStack()
