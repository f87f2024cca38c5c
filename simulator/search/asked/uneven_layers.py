"""Layers whose experts are chosen differently: bounds count all as the least uneven of them.

That is a bound where nothing takes less time with more rows, which some machines leave open; of
matmuls of few rows bounds try more rows too (`least_rows.py`), and where all-reduces of more rows
may take less time they leave these out.
"""

from __future__ import annotations

from simulator.search.asked.falling_times import may_fall
from topologies.errors import MachineError
from topologies.machine import Machine
from workload.expert_loads.histogram import RoutedGPT, different_counts
from workload.gpt import GPT

# Collectives of as many rows as the busiest rank has, beside all-to-alls, by their labels.
OF_ROWS = ("experts.up.reduce", "experts.down.grad.reduce", "experts.down.bias.scores.grad.reduce")


def check(gpt: GPT, machine: Machine) -> None:
    """Refuse layers that are chosen differently where more rows may take less time."""
    if not are_different(gpt):
        return
    if why := _may_fall(machine):
        raise MachineError(
            "a search knows no bounds of layers whose experts are chosen differently on "
            f"{machine.full_name}, since {why}; give a routing histogram with one list of tokens "
            "for all layers"
        )


def are_different(gpt: GPT) -> bool:
    """Whether layers of a model differ in how many rows their experts get."""
    return isinstance(gpt, RoutedGPT) and not gpt.capacity and len(different_counts(gpt)) > 1


def _may_fall(machine: Machine) -> str:
    """Why more rows may take less time on a machine; "" where they do not."""
    if machine.profile is not None:
        return "its measured times may fall as sizes grow"
    if why := may_fall(machine, "all_to_all"):
        return why
    if machine.device.matmul.forms.get("TN", 1.0) > 1:
        return "its matmuls of form TN are faster from a size on"
    return ""
