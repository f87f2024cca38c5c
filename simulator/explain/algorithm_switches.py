"""Where a library's tuner picks another algorithm on a changed machine.

A tuner decides by constants of its own, not by how long an algorithm takes. So where a change of
the machine makes it pick another one, the step's time jumps: a machine twice as good saves more or
less than its speed explains. Only all-reduces have a choice
(`topologies/collectives/nccl_tuner.py`), which depends on the group and on what its links and NICs
have nominally, not on who else uses them; of its protocols a tuner takes the best for itself, and
times do not depend on which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from simulator.engine.whole_step import step_program
from simulator.pipeline.stage_orders import stage_orders_of
from simulator.predict import Prediction
from simulator.ranks.fabric import MachineFabric
from topologies.collectives.collective_time import Kind, algorithm_seconds, picked
from topologies.collectives.nccl_tuner import NONE
from topologies.files.units import format_quantity
from topologies.hardware.software import AUTO
from topologies.machine import Machine
from topologies.records import record
from topologies.routing.rings import Ring
from workload.op import Op
from workload.passes.matmul_forms import PLAIN

ALL_REDUCE: Kind = "all_reduce"


@record
class AllReduce:
    """All-reduces of so many bytes in the groups over some axes (`z`, `tp+y`), on one of their
    rings."""

    axes: str
    nbytes: int
    ring: Ring


@record
class Switch:
    """All-reduces for which a tuner picks another algorithm on a changed machine."""

    axes: str
    nbytes: int
    before: str
    after: str

    def __str__(self) -> str:
        size = format_quantity(self.nbytes, "bytes", binary=True)
        return f"{self.after} in place of {self.before} for {self.axes} all-reduces of {size}"

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {"axes": self.axes, "bytes": self.nbytes, "from": self.before, "to": self.after}


def all_reduces(prediction: Prediction, machine: Machine, fabric: MachineFabric) -> list[AllReduce]:
    """The different all-reduces of a step for which the machine's library has a tuner."""
    software, profile = machine.software, machine.profile
    is_measured = profile is not None and ALL_REDUCE in profile.collectives
    if software.tuner == NONE or software.algorithm.of(ALL_REDUCE) != AUTO or is_measured:
        return []
    plan = prediction.plan
    reduced = (op for op in _ops(prediction, machine) if op.kind == ALL_REDUCE)
    asked = dict.fromkeys((op.group, op.nbytes) for op in reduced)
    groups = {group: fabric.rings([plan.grid.groups(*group)])[0][0] for group, _ in asked}
    return [
        AllReduce("+".join(group), nbytes, ring)
        for group, nbytes in asked
        for ring in groups[group]
        if ring.ranks > 1
    ]


def _ops(prediction: Prediction, machine: Machine) -> list[Op]:
    """An op of each sort of the predicted step."""
    gpt, plan, tuning = prediction.gpt, prediction.plan, prediction.tuning
    forms = PLAIN if tuning is None else tuning.forms
    behaviour = prediction.stack.kernels(gpt, plan, machine).behaviour
    if plan.pp > 1:
        sorts = stage_orders_of(gpt, plan, forms, behaviour).sorts
    else:
        sorts = [step_program(gpt, plan, forms=forms, behaviour=behaviour).columns.sorts]
    return [op for each in sorts for op in each.ops]


def switches(asked: Iterable[AllReduce], before: Machine, after: Machine) -> tuple[Switch, ...]:
    """What the tuner picks otherwise after a change of the machine than before it."""
    found: dict[Switch, None] = {}
    for each in asked:
        old, new = (_algorithm(machine, each) for machine in (before, after))
        if old != new:
            found[Switch(each.axes, each.nbytes, old, new)] = None
    return tuple(sorted(found, key=lambda each: (each.axes, each.nbytes, each.after)))


def _algorithm(machine: Machine, asked: AllReduce) -> str:
    times = algorithm_seconds(machine, ALL_REDUCE, asked.nbytes, asked.ring)
    return picked(machine, ALL_REDUCE, asked.nbytes, asked.ring, times)


def sentence(tuner: str, found: Sequence[Switch]) -> str:
    """What a tuner does otherwise, in words; the first two switches by name."""
    named = ", ".join(map(str, found[:2]))
    more = f" and {len(found) - 2} more" if len(found) > 2 else ""
    return f"{tuner} takes {named}{more}"
