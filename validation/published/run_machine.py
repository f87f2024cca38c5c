"""The machine that a published run ran on: one of ours by its name, or built from its columns."""

from __future__ import annotations

import math
from dataclasses import replace

from topologies.build import Parts, build_machine
from topologies.machine import Machine
from topologies.session import session_cached
from validation.published.runs import PublishedRun


def machine_of(run: PublishedRun) -> Machine:
    """The machine of a row, with as many nodes as it needs."""
    per_node = run.whole("gpus_per_node") or 0
    gpus = run.whole("gpus_total") or 1
    return _built(
        Parts(
            gpu=run.text("gpu"),
            nodes=math.ceil(gpus / (per_node or 8)),
            devices_per_node=per_node,
            nics_per_node=run.whole("nics_per_node") or 0,
            nic_bits_per_s=(run.real("nic_gbps") or 0.0) * 1e9,
            fabric=run.text("fabric").lower(),
            name=run.text("machine"),
        )
    )


@session_cached(256)
def _built(parts: Parts) -> Machine:
    return build_machine(parts)


@session_cached(256)
def scattering(machine: Machine, x: int) -> Machine:
    """The machine whose messages between nodes go in x parts over as many NICs, and are gathered
    behind them inside the node.

    Source: Narayanan et al. (SC21), section 4.1. Messages inside a node are left as they are.
    """
    curve, node = machine.software.send_recv, machine.node
    if x < 2 or x > node.devices or curve is None:
        return machine
    parts_s = 1 / (x * node.nics.bytes_per_s * curve.efficiency_across)
    links = node.device_bytes_per_s or node.links.all_pairs * node.links.bytes_per_s
    gather_s = (x - 1) / x / (links * curve.efficiency_within)
    share = 1 / (parts_s + gather_s) / node.nics.bytes_per_s
    # Several NICs carry more than the one of the share's meaning, so a setting would refuse it.
    faster = replace(machine.software, send_recv=replace(curve, efficiency_across=share))
    return replace(machine, software=faster)
