"""Environments: what a job's settings make of a machine, whatever its software.

An environment's name follows a machine's, and that of its variant: `jupiter-booster:no-gdr`,
`frontier:rccl-default:no-gdr`, `8x8xH100,8xNDR:no-gdr`.

`no-gdr` is GPUDirect switched off (`NCCL_NET_GDR_LEVEL=0`) or ruled out by the distance of device
and NIC: what goes to another node passes the memory of both hosts. A chunk then crosses the
sender's host link, the NICs and the receiver's host link one after the other, so the time of a byte
is the sum of the three.

Sources of the check (none of them is a step time): axonn-ai/Megatron-AxoNN@8a4ae24,
examples/comm_model.py, has 34.0, 2 x 20.6 and 4 x 10.2 GB/s a node between nodes of Frontier, in
comments beside the rates that its authors set, and the job scripts of that time leave
NCCL_NET_GDR_LEVEL out: 42 here, of 100 with GPUDirect. Gathers of a profiled job on Frontier
without it: 28.7 GB/s (hpcgroup/perf-variability@AD), where the gathers' share of 42 is 31.
NVIDIA/nccl issue 1579, one GH200 a node with four NICs of 25 GB/s: all-gathers 82.2 GB/s without,
94.5 with; 69 of 100 here.
Not modelled: the memory bandwidth of the host, of which a node's bytes take four times their own
(on Frontier's 205 GB/s that is the same limit within some 20 %), and further latency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from topologies.errors import MachineError
from topologies.files.facts import Fact
from topologies.machine import Machine, machine_from_facts

NO_GDR = "no-gdr"
_RATE = "node.nics.bandwidth"


def staged_bytes_per_s(nic_bytes_per_s: float, host_bytes_per_s: float) -> float:
    """What NICs send of a device's data that both hosts' memories hold in between.

    Source: one chunk's three ways in turn, 1 / (1/NIC + 2/host link); see this module's first
    lines. Not modelled: chunks that overlap, which could reach the slowest of the three.

    >>> round(staged_bytes_per_s(25e9, 36e9) / 1e9, 2)
    10.47
    """
    return 1 / (1 / nic_bytes_per_s + 2 / host_bytes_per_s)


def _without_gpudirect(machine: Machine) -> Fact:
    node = machine.node
    each = max(node.nics.count // node.devices, 1)  # NICs of one device, which share its host link
    rate = staged_bytes_per_s(each * node.nics.bytes_per_s, node.host.bytes_per_s) / each
    source = (
        f"no-gdr: staged in host memory, 1 / (1/NIC + 2/host link) of {each} x "
        f"{node.nics.bytes_per_s / 1e9:g} and {node.host.bytes_per_s / 1e9:g} GB/s; checked in "
        "topologies/environments.py"
    )
    unsure = "node.host.bandwidth" in _low(machine)
    return Fact(_RATE, f"{rate / 1e9:.4g} GB/s", source, "low" if unsure else "medium")


def _low(machine: Machine) -> set[str]:
    return {fact.key for fact in machine.entries if fact.confidence == "low"}


ENVIRONMENTS: Mapping[str, Callable[[Machine], Fact]] = MappingProxyType(
    {NO_GDR: _without_gpudirect}
)


def in_environment(machine: Machine, name: str) -> Machine:
    """The machine as jobs with these settings find it.

    Raises a MachineError if it has no NICs, has measured tables of collectives, or is in that
    environment already. The machine's `run_to_run` noise is dropped: it was measured without it.
    """
    if not machine.node.nics.count:
        raise MachineError(f"{machine.name} has no NICs, so {name} means nothing there")
    if machine.profile is not None and machine.profile.collectives:
        raise MachineError(
            f"{machine.name} has measured tables of collectives, which {name} cannot change"
        )
    if name in machine.variant.split(":"):
        raise MachineError(f"{machine.full_name} is in the environment {name} already")
    variant = ":".join(filter(None, (machine.variant, name)))
    facts = {each.key: each for each in machine.entries if not each.key.startswith("run_to_run.")}
    facts |= {_RATE: ENVIRONMENTS[name](machine), "variant": Fact("variant", variant, "")}
    return machine_from_facts(tuple(facts.values()), machine.profile, machine.name)
