"""How a step's time follows the machine's parameters, each by simulating the step again.

The elasticity of a parameter p is d ln t / d ln p: at -0.3, one per cent more of p takes 0.3 % off
the step. It is a central difference over p / `FACTOR` and p * `FACTOR`; for what is counted rather
than measured (links), over one less, but never none, and one more. Links to a switch within a node
are not counted: times `node.links.bandwidth` they are a device's one rate, whose sensitivity is the
same for both. A share that comes near 1 rises
less than it falls, since 1 is the end. Since seconds are the only unit of time, the elasticities of
all durations minus those of all rates sum to 1 for a machine whose every number with a unit is in
its file, but where a library changes its algorithm within the difference, or the device waits for
the host, whose time is the stack's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from simulator.explain.algorithm_switches import AllReduce, Switch, switches
from topologies.errors import MachineError
from topologies.files.schema import Leaf, value_of
from topologies.files.units import Unit, format_quantity
from topologies.hardware.node import MOST_LINKS
from topologies.machine import Machine, known_keys
from topologies.machine_files import with_settings
from topologies.records import record

FACTOR = 1.1
SYMBOLS: dict[Unit, str] = {"bytes/s": "B/s", "FLOP/s": "FLOP/s", "s": "s"}
LINK_CLASSES = "node.links.pairs"
COUNTS = (
    "node.links.all_pairs",
    "interconnect.global_links",
    "interconnect.uplinks_per_leaf",
)
FOR_INFORMATION = ("device.matmul.best", "node.nics.latency")  # no cost depends on them
OF_RUNS = ("run_to_run.", "reliability.", "storage.")  # say nothing of how long a step takes
Settings = dict[str, object]


@record
class MachineParameter:
    """One number of a machine: `name` is its key in the file, `keys` all that carry it.

    `value` is in SI, with `unit`; or a pure number, as an efficiency is; or, if `counted`, a number
    of links. `of_class` is the number of links between two devices that a class of links inside
    the node has, or 0. `most` is the highest value to try.
    """

    name: str
    value: float
    unit: Unit | None
    counted: bool = False
    of_class: int = 0
    most: float = math.inf

    @property
    def is_rate(self) -> bool:
        """Whether more of it is better."""
        return self.unit != "s"

    @property
    def is_pure(self) -> bool:
        """Whether it has no unit, as an efficiency."""
        return self.unit is None and not self.counted

    @property
    def text(self) -> str:
        """The value as people read it."""
        if self.counted:
            return f"{self.value:.0f} link{'s' if self.value > 1 else ''}"
        return format_quantity(self.value, self.unit, digits=4) if self.unit else f"{self.value:g}"

    @property
    def difference(self) -> str:
        """By how much it is changed, in words."""
        if not self.counted:
            return f"10 % of {self.name}"
        return f"one link {'more or less' if self.value > 1 else 'more'} of {self.name}"

    def steps(self) -> tuple[float, float]:
        """The values below and above between which the difference is taken."""
        if self.counted:
            return max(self.value - 1, 1), min(self.value + 1, self.most)
        return self.value / FACTOR, min(self.value * FACTOR, self.most)

    def settings(self, machine: Machine, value: float) -> Settings:
        """What to set on the machine for the parameter to have that value."""
        if self.of_class:
            pairs = machine.node.links.pairs
            count = round(value)
            return {LINK_CLASSES: [[a, b, count if n == self.of_class else n] for a, b, n in pairs]}
        if self.counted:
            return {self.name: round(value)}
        return {self.name: f"{value!r} {SYMBOLS[self.unit]}" if self.unit else value}


@record
class Elasticity:
    """A parameter, and by how many per cent the step grows for one per cent more of it; with
    `switches`, a tuner picks other algorithms within the difference, which bends that."""

    parameter: MachineParameter
    value: float
    switches: tuple[Switch, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        p = self.parameter
        return {
            "key": p.name,
            "value": p.value,
            "unit": p.unit or ("links" if p.counted else ""),
            "elasticity": self.value,
            "switches": [each.as_dict() for each in self.switches],
        }


def parameters(machine: Machine, *precisions: str, pure: bool = False) -> list[MachineParameter]:
    """Every number of a machine on which a step's time may depend through its unit, counts of
    links, and with `pure` the numbers without a unit too: efficiencies, shares, shapes of curves.

    Peaks of other precisions are left out, and what a calibrated machine's tables decide.
    """
    known = known_keys(machine.interconnect.kind)
    found = [p for p in _of_facts(machine, known) if _matters(p, precisions)]
    shown = [p for p in found if pure or not p.is_pure]
    return [p for p in [*shown, *_link_classes(machine)] if _can_be_set(machine, p)]


def elasticity(
    parameter: MachineParameter,
    machine: Machine,
    seconds_on: Callable[[Machine], float],
    asked: Sequence[AllReduce] = (),
) -> Elasticity:
    """The elasticity of a parameter, given how to simulate the step on a machine, and the
    all-reduces `asked` of its library."""
    low, high = parameter.steps()
    machines = [with_settings(machine, parameter.settings(machine, value)) for value in (low, high)]
    times = [seconds_on(each) for each in machines]
    value = math.log(times[1] / times[0]) / math.log(high / low) + 0.0
    return Elasticity(parameter, value, switches(asked, *machines))


def _of_facts(machine: Machine, known: dict[str, Leaf]) -> Iterator[MachineParameter]:
    for fact in machine.entries:
        leaf = known[fact.key]
        if leaf.unit in SYMBOLS:
            value = value_of(leaf, fact.value, machine.name)
            if value > 0:
                yield MachineParameter(fact.key, value, leaf.unit)
        elif fact.key in COUNTS and int(fact.value) > 0:
            yield MachineParameter(fact.key, int(fact.value), None, counted=True, most=leaf.most)
        elif leaf.type is float and leaf.unit is None and float(fact.value) > 0:
            value = float(fact.value)
            yield MachineParameter(fact.key, value, None, most=_most(leaf, value))


def _most(leaf: Leaf, value: float) -> float:
    """The highest value to try: a share that others take comes no more than half way to 1."""
    if not leaf.share:
        return math.inf
    return 1.0 if leaf.positive else (1 + value) / 2


def _link_classes(machine: Machine) -> list[MachineParameter]:
    counts = sorted({n for _, _, n in machine.node.links.pairs}, reverse=True)
    if len(counts) < 2:
        return []
    return [
        MachineParameter(
            f"{LINK_CLASSES} of {n}", n, None, counted=True, of_class=n, most=MOST_LINKS
        )
        for n in counts
    ]


def _matters(parameter: MachineParameter, precisions: Sequence[str]) -> bool:
    if parameter.name.startswith("device.peak_flops."):
        return parameter.name.rpartition(".")[2] in (*precisions, "fp32")
    return parameter.name not in FOR_INFORMATION and not parameter.name.startswith(OF_RUNS)


def _can_be_set(machine: Machine, parameter: MachineParameter) -> bool:
    try:
        with_settings(machine, parameter.settings(machine, parameter.value))
    except MachineError:
        return False
    return True
