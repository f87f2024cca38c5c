"""The machine that a published run ran on: one of ours by its name, or built from its columns."""

from __future__ import annotations

import math
from dataclasses import replace

from topologies.build import Parts, build_machine
from topologies.hardware.segments import segments_of
from topologies.machine import Machine
from topologies.session import session_cached
from validation.published.runs import PublishedRun

SHIPPED_AS = {"JUPITER": "jupiter-booster"}  # machines that are called otherwise in the rows


def machine_of(run: PublishedRun) -> Machine:
    """The machine of a row, with as many nodes as it needs, or racks as its segments need."""
    parts = parts_of(run)
    built, gpus = _built(parts), run.whole("gpus_total") or 1
    racks = segments_of(built.node, gpus).nodes
    return built if racks <= parts.nodes else _built(replace(parts, nodes=racks))


def parts_of(run: PublishedRun) -> Parts:
    """The parts that a row names, with as many nodes as it needs."""
    per_node = run.whole("gpus_per_node") or 0
    gpus = run.whole("gpus_total") or 1
    return Parts(
        gpu=run.text("gpu"),
        nodes=math.ceil(gpus / (per_node or 8)),
        devices_per_node=per_node,
        nics_per_node=run.whole("nics_per_node") or 0,
        nic_bits_per_s=(run.real("nic_gbps") or 0.0) * 1e9,
        fabric=run.text("fabric").lower(),
        name=SHIPPED_AS.get(run.text("machine"), run.text("machine")),
    )


@session_cached(256)
def _built(parts: Parts) -> Machine:
    return build_machine(parts)
