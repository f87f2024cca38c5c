"""The parameters that the host updates if it updates a share of them, `offload_share`.

Each rank counts its own parameters. Megatron-Core: the host updates the first parameters up to the
share; the one that crosses it belongs to the host as a whole. ZeRO-3 (DeepSpeed): parameters are
grouped into sub-groups, each entirely on the host or on the device; the host updates the last ones,
rounded up, so a single sub-group is always the host's.

Sources: NVIDIA/Megatron-LM@d98e8a6, core/optimizer/cpu_offloading/hybrid_optimizer.py
(_get_sub_optimizer_param_groups); deepspeedai/DeepSpeed@edaa722, runtime/zero/stage3.py
(subgroup_to_device, _create_fp16_sub_groups). Not modelled: that Megatron-Core counts dense
parameters and experts separately, and that it counts a rank's shard of the distributed optimizer's
buffer.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from workload.lowering.builder import Builder
from workload.lowering.parameter import Parameter
from workload.op import HEAD, HOST


def keep_rest_here(b: Builder) -> None:
    """Have the states of what the host does not update on the device."""
    if b.plan.training.offload_share == 1:
        return
    there = on_host(b)
    for p in b.at_end:
        for name in p.states:
            if p.name not in there and b.buffers[name].role == HOST:
                b.add(replace(b.buffers[name], role="optimizer"))


def on_host(b: Builder) -> set[str]:
    """The names of the parameters that the host updates."""
    share = b.plan.training.offload_share
    parameters = sorted(b.at_end, key=lambda p: p.owner == HEAD)  # in the model's order
    if share == 1:
        return {p.name for p in parameters}
    if b.held.sub_group and b.plan.zero == 3:
        groups = _sub_groups(b, parameters)
        first = int((1 - share) * len(groups))
        return {p.name for group in groups[first:] for p in group}
    found, taken, of = set[str](), 0, Fraction(str(share))
    total = sum(_elements(b, p) for p in parameters)
    for p in parameters:
        if taken * of.denominator < total * of.numerator:
            found.add(p.name)
            taken += _elements(b, p)
    return found


def _sub_groups(b: Builder, parameters: list[Parameter]) -> list[list[Parameter]]:
    """Parameters in a row, each of whose sub-groups ends where it has enough elements."""
    groups, elements = [list[Parameter]()], 0
    for p in parameters:
        if elements >= b.held.sub_group:
            groups.append([])
            elements = 0
        groups[-1].append(p)
        elements += _elements(b, p)
    return groups


def _elements(b: Builder, p: Parameter) -> int:
    return b.buffers[p.trained].elements
