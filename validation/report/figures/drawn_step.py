"""A predicted step simulated again, for what its answer does not hold: timeline, memory, links.

A prediction follows exactly from its model, plan, machine and placement, so an answer that comes
out otherwise was made of something else or by another version, and is not drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate

from simulator.attribution.critical_path import SimulatedStep, simulated_step
from simulator.costs.analytic import ComputeCosts, compute_costs
from simulator.costs.kernels import Kernels
from simulator.costs.published import PublishedCosts
from simulator.engine.ticks import to_seconds
from simulator.explain.bottleneck_link import limiting_link
from simulator.predict import Prediction, predict
from simulator.ranks.fabric import MachineFabric
from topologies.collectives.link_loads import LinkLoads, RingTraffic, link_loads
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.records import record
from topologies.routing.locality import locality
from validation.report.answer_files import ReportError
from validation.report.asking import StepOf
from validation.report.read_prediction import Answer
from workload.expert_loads.rank_sizes import fullest
from workload.kinds import RING_SHIFT
from workload.lowering import lower
from workload.op import COMPUTE, PAIRS, Op
from workload.passes.matmul_forms import PLAIN
from workload.plan import Plan

MOST_OPS = 120_000  # simulated, of all stages
MOST_SPANS = 60_000  # shown, some 3 MB of the page
MOST_RANKS = 16
EXACT = 1e-9


@record(slots=False)
class Track:
    """One rank's ops in issue order, with their starts and ends in seconds; what a device waits for
    the host is in front of the op."""

    rank: int
    stage: int
    ops: Sequence[Op]
    start_s: Sequence[float]
    end_s: Sequence[float]


@record(slots=False)
class MemoryCurve:
    """Bytes in use on a rank by role, from each of these times on."""

    rank: int
    at_s: Sequence[float]
    parts: Mapping[str, Sequence[int]]


@record(slots=False)
class Scene:
    """A simulated step. `shown` is the plan with the micro-batches that are drawn: all, or as many
    as are still legible."""

    answer: Answer
    prediction: Prediction
    machine: Machine
    placement: Placement
    shown: Plan
    step: SimulatedStep

    @property
    def is_whole(self) -> bool:
        """Whether all micro-batches are drawn."""
        return self.shown == self.prediction.plan

    @property
    def micro_batches(self) -> str:
        """How many of the step's micro-batches are drawn, in words."""
        whole = self.prediction.plan.micro_batches
        return f"{self.shown.micro_batches:,} of {whole:,} micro-batches"

    @cached_property
    def step_s(self) -> float:
        """The seconds that are drawn."""
        return to_seconds(max(max(ends) for _, ends in self.step.times))

    @cached_property
    def tracks(self) -> list[Track]:
        """The ranks that are drawn: one of each stage, then others that behave unlike it."""
        stages, count = self.step.network.stages, len(self.step.times)
        first = {stage: number for number, stage in reversed(list(enumerate(stages)))}
        each = _spread(sorted(first.values()), MOST_RANKS)
        order = [*each, *(n for n in range(count) if n not in first.values())]
        sizes = accumulate(len(self.step.times[number][0]) for number in order)
        fitting = [n for n, size in zip(order, sizes, strict=True) if size <= MOST_SPANS]
        return [self._track(number) for number in (fitting or order[:1])[:MOST_RANKS]]

    def _track(self, number: int) -> Track:
        network, (starts, ends) = self.step.network, self.step.times[number]
        hosts = self.step.hosts[number]
        stage = network.stages[number]
        in_words = self.prediction.in_words
        ops = self.step.programs[stage].ops
        if in_words("tp") != "tp":
            ops = [_named(op, in_words) for op in ops]
        return Track(
            network.ranks[number],
            stage,
            ops,
            [to_seconds(start + host) for start, host in zip(starts, hosts, strict=True)],
            [to_seconds(ticks) for ticks in ends],
        )

    @cached_property
    def memory(self) -> MemoryCurve:
        """Memory over time on the fullest of the ranks that are drawn."""
        programs = [fullest(program) for program in self.step.programs]
        track = max(self.tracks, key=lambda t: programs[t.stage].peak.total_bytes)
        uses = programs[track.stage].memory
        parts = {role: [use.parts[role] for use in uses] for role in uses[0].parts}
        at_s = _issued(track)
        return MemoryCurve(track.rank, at_s, {role: row for role, row in parts.items() if any(row)})

    @cached_property
    def links(self) -> dict[str, str]:
        """For each axes how far their groups reach, and over which links."""
        grid, found = self.shown.grid, {}
        between = {t.axes: t.pairs for t in sorted(self.traffic, key=lambda t: t.hop_bytes)}
        for axes in dict.fromkeys(t.axes for t in self.traffic):
            words = limiting_link(self.machine, self.placement, grid, axes, pairs=between[axes])
            reach = locality(self.machine, self.placement, grid.groups(*axes.split("+"))).words
            found[self.prediction.in_words(axes)] = (
                reach if words == reach.replace("a node", "the node") else
                f"{reach}, {words}"
            )  # fmt: skip
        return found

    @cached_property
    def traffic(self) -> list[RingTraffic]:
        """What each member of a group sends on in the drawn step, a mean over the stages."""
        sums: dict[tuple[tuple[str, ...], bool], float] = {}
        for program in self.step.programs:
            for op in program.ops:
                if op.communicates and op.kind != "recv":
                    group = ("pp",) if op.is_message else op.axes, PAIRS in op.traffic
                    sums[group] = sums.get(group, 0.0) + self._sent(op)
        grid, stages = self.shown.grid, len(self.step.programs)
        return [
            RingTraffic("+".join(axes), grid.groups(*axes), nbytes / stages, pairs)
            for (axes, pairs), nbytes in sums.items()
        ]

    def _sent(self, op: Op) -> float:
        """Bytes that a member sends on: those of a ring, twice round for an all-reduce."""
        if op.is_message or op.kind == RING_SHIFT:
            return op.nbytes
        ranks = self.shown.grid.size(*op.axes)
        return op.nbytes * (ranks - 1) / ranks * (2 if op.kind == "all_reduce" else 1)

    @cached_property
    def loads(self) -> LinkLoads:
        """What the links carry in the drawn step."""
        return link_loads(self.machine, self.placement, self.traffic)


def _named(op: Op, in_words: Callable[[str], str]) -> Op:
    """An op whose axes and stream are called as the plan's users call them."""
    axes = tuple(map(in_words, op.axes))
    return replace(op, axes=axes, stream=in_words(op.stream)) if axes != op.axes else op


def _spread(numbers: Sequence[int], most: int) -> list[int]:
    """Of these at most so many, the first and the last among them, evenly."""
    if len(numbers) <= most:
        return list(numbers)
    return [numbers[round(n * (len(numbers) - 1) / (most - 1))] for n in range(most)]


def _issued(track: Track) -> list[float]:
    """When each op's buffers are there: as the compute stream comes to it, or to the op before."""
    clock, at_s = 0.0, []
    for op, start_s in zip(track.ops, track.start_s, strict=True):
        clock = start_s if op.stream == COMPUTE else clock
        at_s.append(clock)
    return at_s


def staged(answer: Answer, step_of: StepOf) -> Scene:
    """The step of an answer, simulated again; a ReportError says why it cannot be."""
    if answer.asked["compute"] == "measured":
        raise ReportError("ops were measured one by one, and are not measured again for a page")
    step = step_of(answer.asked, answer.files)
    stack, plan, machine, placement = step.job.stack, step.job.plan, step.machine, step.placement
    gpt = step.job.gpt
    prediction = predict(gpt, plan, machine, placement=placement, stack=stack)
    if abs(prediction.step_s / answer.step_s - 1) > EXACT:
        raise ReportError(
            f"{answer.origin} was made with other settings or by another version: "
            f"its step takes {answer.step_s:.6g} s, and {prediction.step_s:.6g} s without"
        )
    shown = _shortened(plan, prediction)
    fabric = MachineFabric(machine, plan.grid.ranks, placement)
    kernels = stack.kernels(gpt, shown, machine)
    costs = _costs(machine, fabric.ranks_per_node, plan.grid.ranks, kernels)
    forms = prediction.tuning.forms if prediction.tuning else PLAIN
    stages = [
        lower(gpt, shown, stage, forms=forms, behaviour=kernels.behaviour)
        for stage in range(plan.pp)
    ]
    return Scene(
        answer, prediction, machine, placement, shown, simulated_step(stages, costs, fabric)
    )


def _costs(machine: Machine, ranks_per_node: int, ranks: int, kernels: Kernels) -> ComputeCosts:
    if kernels.tabled:
        return PublishedCosts(machine, ranks, kernels)
    return compute_costs(machine, ranks_per_node, ranks, kernels)


def _shortened(plan: Plan, prediction: Prediction) -> Plan:
    """The plan with as many micro-batches as can be drawn; chunks take turns over whole rounds."""
    each = prediction.ops * plan.pp / plan.micro_batches
    unit = plan.pp if plan.vpp > 1 else 1
    count = max(int(min(MOST_OPS, MOST_SPANS * plan.pp) / each) // unit, 1) * unit
    return plan if count >= plan.micro_batches else plan.with_micro_batches(count)
