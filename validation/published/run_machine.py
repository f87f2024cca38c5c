"""The machine that a published run ran on: one of ours by its name, or built from its columns."""

from __future__ import annotations

from topologies.build import Parts, build_machine, gpu_of
from topologies.hardware.segments import segments_of
from topologies.machine import Machine
from topologies.session import session_cached
from validation.published.runs import PublishedRun

SHIPPED_AS = {"JUPITER": "jupiter-booster"}  # machines that are called otherwise in the rows


def machine_of(run: PublishedRun) -> Machine:
    """The machine of a row, with as many nodes as it needs."""
    return _built(parts_of(run))


def parts_of(run: PublishedRun) -> Parts:
    """The parts that a row names, with as many nodes as it needs."""
    per_node = run.whole("gpus_per_node") or 0
    gpus = run.whole("gpus_total") or 1
    return Parts(
        gpu=run.text("gpu"),
        nodes=segments_of(per_node or 8, _tray(run.text("gpu"), per_node), gpus).nodes,
        devices_per_node=per_node,
        nics_per_node=run.whole("nics_per_node") or 0,
        nic_bits_per_s=(run.real("nic_gbps") or 0.0) * 1e9,
        fabric=run.text("fabric").lower(),
        name=SHIPPED_AS.get(run.text("machine"), run.text("machine")),
    )


def _tray(gpu: str, per_node: int) -> int:
    """Devices of a tray, where nodes are racks of trays."""
    own = gpu_of(gpu).get("set", {}).get("node.tray")
    return int(own["value"]) if own and per_node % own["value"] == 0 else 0


@session_cached(256)
def _built(parts: Parts) -> Machine:
    return build_machine(parts)
