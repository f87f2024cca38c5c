"""The stack of a question that names none: what most train with on such devices.

A plan with y or z above 1 is of the 3D algorithm, which simgpt's executor and AxoNN alone run. Of
the devices, NVIDIA's train with Megatron-Core: more published runs on Hopper and Blackwell are of
it than of any other framework (validation/data/published_runs.csv; on A100 most are of two studies
with Megatron-DeepSpeed). Its tokens reach their experts by all-to-alls, which the help of
`--moe-token-dispatcher-type` recommends with expert parallelism; the argument's own default is
allgather (NVIDIA/Megatron-LM, megatron/training/arguments.py). AMD's train from MI300 on with
Primus (AMD's own distribution of it), and Intel's Max with Megatron-DeepSpeed (ALCF's user guide
of Aurora). On processors, and on AMD's devices before MI300, `simgpt run` trains. A search on the
machines of the two papers that simgpt follows looks among the plans of the 3D algorithm, as they
did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.stacks.stack import EXECUTOR
from topologies.errors import MachineError
from topologies.hardware.device_library import family_of
from topologies.machine import Machine
from workload.plan_text import plan_words

SEED_MACHINES = ("alps", "frontier", "perlmutter")
THREE_D = ("y", "z")
OF_FAMILIES = (  # beginnings of a family's name, the stack, and whose devices they are
    (("mi3", "mi4"), "primus", "AMD's devices from MI300 on"),
    (("pvc",), "megatron-deepspeed", "Intel's Max"),
    (("mi",), EXECUTOR.name, "AMD's devices before MI300"),
    (("",), "megatron-core", "NVIDIA's devices"),
)


def default_stack(
    machine: Machine, plan: str | Mapping[str, Any], *, searches: bool = False
) -> tuple[str, str]:
    """The name of the stack for a plan's words on a machine, and why it is that one.

    >>> from topologies.machine_files import load_machine
    >>> default_stack(load_machine("dgx-h100"), "tp=8,dp=rest")
    ('megatron-core', "usual on NVIDIA's devices")
    >>> default_stack(load_machine("dgx-h100"), "x=2,z=4,dp=rest")
    ('simgpt', 'for plans with y or z above 1')
    """
    words = plan_words(plan)
    if any(str(words.get(axis, 1)) != "1" for axis in THREE_D):
        return EXECUTOR.name, "for plans with y or z above 1"
    if machine.profile is not None:
        return EXECUTOR.name, "whose kernels were measured for this machine's file"
    if searches and machine.name in SEED_MACHINES:
        return EXECUTOR.name, f"for searches on {machine.name}"
    family = _family(machine)
    if family is None:
        return EXECUTOR.name, "for devices that are not in the library"
    _, stack, whose = next(row for row in OF_FAMILIES if family.startswith(row[0]))
    return stack, f"usual on {whose}"


def _family(machine: Machine) -> str | None:
    try:
        return family_of(machine.device.known_as)
    except MachineError:
        return None
