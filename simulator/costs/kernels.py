"""How a framework's kernels differ from one kernel for every op of a program."""

from __future__ import annotations

from simulator.costs.attention import Halves
from topologies.records import record
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour


@record
class Kernels:
    """A software stack on a device: its behaviour (passes over the program) and its rates.

    `host_s` is how long the host takes to issue a kernel; 0 where it is never the bottleneck.
    `host_of_expert_s` is how much longer it takes for each kernel that one call issues for an
    expert, `narrow_host_of_expert_s` for a matmul of fewer than 16 bits. `memory_shares` has, for a
    kind of op, the share of the memory's bandwidth that its kernel reaches in place of the
    device's, `place_s` how long it takes for each place that it looks at. `element_s` has, by names
    of ops, the least time of their kernels per element. `tuned_norms` are the widths with
    specialised norm kernels; other widths use a general kernel. If it is empty, no width is
    distinguished. `attention` has the shares of the peak that its fused attention reaches, forward
    and backward; None: those of the machine's file. `halves` say how these go with the sequence.
    `pace` is the rate of a framework's compute over that of its kernels one by one: what gaps
    between them and kernels that are not ours cost. With `tabled` matmuls are interpolated in what
    was measured on the device and published. `graphs` are the parts of layers that are captured in
    CUDA graphs (`simulator/costs/graph_scopes.py`).
    """

    host_s: float = 0.0
    host_of_expert_s: float = 0.0
    narrow_host_of_expert_s: float = 0.0
    graphs: tuple[str, ...] = ()
    attention: tuple[float, float] | None = None
    halves: Halves | None = None
    pace: float = 1.0
    memory_shares: tuple[tuple[str, float], ...] = ()
    place_s: tuple[tuple[str, float], ...] = ()
    element_s: tuple[tuple[str, float], ...] = ()
    tuned_norms: tuple[int, ...] = ()
    tabled: bool = False
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR


PLAIN_KERNELS = Kernels()
