"""What else one could do: a machine twice as good in one respect, or a plan next to this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from math import gcd, prod
from typing import Any

from simulator.explain.algorithm_switches import Switch
from simulator.explain.sensitivity import MachineParameter
from simulator.stacks.stack import EXECUTOR, Stack
from topologies.errors import SimgptError
from topologies.machine import Machine
from topologies.records import record
from workload.exchange.table import USUAL
from workload.gpt import GPT
from workload.grid import SHARDS, WITHIN_STAGE
from workload.lowering import check
from workload.overlaps import OVERLAPS, WITHIN_SLOTS
from workload.pipeline.schedule import ways
from workload.plan import Plan, in_axonn_words, text_of
from workload.recomputation.parts import RECOMPUTES

SENDS_NOTHING = {"dispatcher": USUAL, "fp8_dispatch": False}


@record
class WhatIf:
    """A change that was simulated: what it is in words, and the step's seconds with it; with
    `switches`, a tuner picks other algorithms after it, which bends what it saves. Of another
    `plan` the `stack` is said, as which it is written."""

    words: str
    step_s: float
    base_s: float
    plan: Plan | None = None
    stack: Stack = EXECUTOR
    switches: tuple[Switch, ...] = ()

    @property
    def saving(self) -> float:
        """The share of the step that the change saves; negative if it costs."""
        return 1 - self.step_s / self.base_s

    def scaled(self, factor: float) -> WhatIf:
        """The change with both steps `factor` times as long."""
        return replace(self, step_s=self.step_s * factor, base_s=self.base_s * factor)

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        record = {"change": self.words, "step_s": self.step_s, "saving": self.saving}
        if self.plan is not None:
            return {**record, "plan_string": self.stack.text(self.plan)}
        return {**record, "switches": [each.as_dict() for each in self.switches]}


@record
class Better:
    """A machine twice as good in one respect: rates doubled, or durations halved."""

    words: str
    parameters: tuple[MachineParameter, ...]

    def settings(self, machine: Machine) -> dict[str, object]:
        """What to set on the machine."""
        result: dict[str, object] = {}
        for each in self.parameters:
            value = each.value * 2 if each.is_rate else each.value / 2
            result |= each.settings(machine, value)
        return result


RESPECTS: Mapping[str, Callable[[MachineParameter], bool]] = {
    "doubling the peak FLOP/s": lambda p: p.name.startswith("device.peak_flops."),
    "doubling memory bandwidth": lambda p: p.name == "device.memory_bandwidth",
    "doubling the links inside the node": lambda p: p.name == "node.links.bandwidth",
    "doubling NIC bandwidth": lambda p: p.name == "node.nics.bandwidth",
    "doubling the links between switches": lambda p: p.name == "interconnect.link_bandwidth",
    "doubling the links to the host": lambda p: p.name == "node.host.bandwidth",
    "halving kernel launches": lambda p: p.name.startswith("device.") and not p.is_rate,
    "halving the latencies of collectives": lambda p: (
        p.name.startswith(("software.", "interconnect.")) and not p.is_rate
    ),
}


def twice_as_good(parameters: list[MachineParameter]) -> list[Better]:
    """The ways in which a machine with these parameters could be twice as good."""
    found = [
        Better(words, tuple(p for p in parameters if p.unit and concerns(p)))
        for words, concerns in RESPECTS.items()
    ]
    return [better for better in found if better.parameters]


def neighbours(gpt: GPT, plan: Plan, stack: Stack = EXECUTOR) -> list[tuple[str, Plan]]:
    """The legal plans one step away, on as many devices, with what differs in words: those that the
    stack runs.

    A step moves a factor of two from one axis to another, doubles or halves the micro-batch, or
    splits experts over twice or half as many ranks, or changes one choice: ZeRO's stage, the
    dispatcher and the bits of rows, recomputation, overlaps, sequence parallelism, the schedule.
    """
    found: dict[Plan, str] = {}
    for changes in _changes(plan, stack):
        try:
            other = _with(plan, changes)
            check(gpt, other)
            stack.check(other, gpt)
        except SimgptError:
            continue
        if other != plan and other not in found:
            found[other] = _difference(plan, other)
    return [(words, other) for other, words in found.items()]


def _changes(plan: Plan, stack: Stack) -> Iterator[dict[str, Any]]:
    axes = WITHIN_STAGE if plan.pipeline.stage_layers or plan.vpp > 1 else (*WITHIN_STAGE, "pp")
    if plan.cp == 1:  # as in a search, sequences are split for who asks for it
        axes = tuple(axis for axis in axes if axis != "cp")
    for less, more in permutations(axes, 2):
        if plan.value(less) % 2 == 0:
            yield {less: plan.value(less) // 2, more: plan.value(more) * 2}
    yield {"mbs": plan.mbs * 2}
    if plan.mbs % 2 == 0:
        yield {"mbs": plan.mbs // 2}
    for zero in (plan.zero - 1, plan.zero + 1):
        if zero in range(4):
            yield {"zero": zero}
    for expert in (plan.ep * 2, plan.ep // 2):
        yield {"ep": max(expert, 1), **(SENDS_NOTHING if expert <= 1 else {})}
    for dispatcher in stack.dispatchers if plan.ep > 1 else ():
        yield {"dispatcher": dispatcher}
    if plan.ep > 1:
        yield {"fp8_dispatch": not plan.experts.fp8_dispatch}
    for recompute in RECOMPUTES:
        yield {"recompute": recompute}
    for overlap in (OVERLAPS, WITHIN_SLOTS):
        yield {"overlap": overlap}
    if plan.tp > 1:
        yield {"sp": not plan.sp}
    if plan.pp > 1 and plan.vpp == 1:
        yield {"schedule": "zb-h1" if plan.pipeline.schedule == "1f1b" else "1f1b"}


def _with(plan: Plan, changes: dict[str, Any]) -> Plan:
    """The plan with these changes; its micro-batch shrinks if a rank has fewer sequences."""
    cells = prod(changes.get(axis, plan.value(axis)) for axis in SHARDS["sequences"])
    cells *= ways(changes.get("schedule", plan.pipeline.schedule))
    per_rank = plan.batch // cells
    wanted = changes.get("mbs", plan.mbs)
    if "mbs" not in changes:
        wanted = gcd(wanted, per_rank) or 1
    changes = {**changes, "mbs": wanted}
    if changes.get("zero", plan.zero) == 0 or (plan.shard and "dp" in changes):
        changes["shard"] = 0
    return plan.changed(**changes)


def _difference(plan: Plan, other: Plan) -> str:
    own, theirs = plan.as_dict(), other.as_dict()
    changed = [key for key in own if own[key] != theirs[key] and key != "shard"]
    words = ", ".join(f"{key}={text_of(theirs[key])}" for key in changed)
    return in_axonn_words(words) if other.is_3d else words
