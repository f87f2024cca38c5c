"""A step of one stage, simulated whole: all its layers, and micro-batches until they repeat.

The program of a few layers is lowered, all others are copies of these (`workload/repetition.py`);
every op of every layer is simulated. A step of many micro-batches is simulated with a few; the rest
is left out by the rule of `steady_state.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from simulator.attribution.breakdown import breakdown, last_to_end
from simulator.costs.analytic import ComputeCosts
from simulator.engine.engines import MOST_TICKS, TOO_LONG
from simulator.engine.known_steps import known_step
from simulator.engine.simulate import Prices, host_waits, times_of
from simulator.engine.steady_state import periods
from simulator.engine.streams import RankTask
from simulator.engine.whole_program import WholeProgram, whole_program
from simulator.ranks.classes import Fabric, InFlight, RankClasses, classes_of, until_consistent
from simulator.result import StepResult
from topologies.records import record
from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.memory import MemoryUse, use_of
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.plan import Plan
from workload.program import Program
from workload.sizes.arrays import Counts, Ticks

Answer = TypeVar("Answer")
MOST_OPS = 400_000  # lowered; some 400 MB and a quarter of a minute
MICRO_BATCHES = 5  # three units, and an end on either side


def simulate_step(
    gpt: GPT,
    plan: Plan,
    costs: ComputeCosts,
    fabric: Fabric,
    *,
    fold: bool = True,
    forms: Forms = PLAIN,
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
) -> StepResult:
    """Simulate a step; without `fold` its program is lowered whole, and nothing is left out."""

    def result(whole: WholeProgram, prices: Prices) -> StepResult | None:
        def simulated() -> StepResult | None:
            timed = _timed(whole, plan.micro_batches, prices)
            return None if timed is None else _result(timed)

        if forms:
            return simulated()
        program = gpt, plan, behaviour, fold, whole.micro_batches
        return known_step(program, prices, [whole.columns.sorts], simulated)

    return _until_they_recur((gpt, plan, forms, behaviour, fold), costs, fabric, result)


def timed_step(
    gpt: GPT,
    plan: Plan,
    costs: ComputeCosts,
    fabric: Fabric,
    *,
    fold: bool = True,
    forms: Forms = PLAIN,
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
) -> TimedStep:
    """The times of a step's ops, as in `simulate_step`."""

    def timed(whole: WholeProgram, prices: Prices) -> TimedStep | None:
        return _timed(whole, plan.micro_batches, prices)

    return _until_they_recur((gpt, plan, forms, behaviour, fold), costs, fabric, timed)


def _until_they_recur(
    asked: tuple[GPT, Plan, Forms, StackBehaviour, bool],
    costs: ComputeCosts,
    fabric: Fabric,
    simulated: Callable[[WholeProgram, Prices], Answer | None],
) -> Answer:
    """What is simulated with as many micro-batches as it takes."""
    gpt, plan, forms, behaviour, fold = asked
    count = MICRO_BATCHES if fold else plan.micro_batches
    while True:
        whole = step_program(gpt, plan, count, fold=fold, forms=forms, behaviour=behaviour)
        answer = until_consistent(
            partial(_classes, whole.program, fabric),
            lambda network: simulated(whole, Prices(costs, network)),  # noqa: B023
        )
        if answer is not None:
            return answer
        count = _more(whole, plan.micro_batches)


def _classes(program: Program, fabric: Fabric, contended: Sequence[InFlight]) -> RankClasses:
    return classes_of([program], fabric, contended=contended)


@record(slots=False)
class TimedStep:
    """When each op of each rank class starts and ends, in ticks, arrays (classes, ops).

    So many micro-batches are `omitted`, by which the end of each class is put off by `delay`,
    (classes, 1).
    """

    whole: WholeProgram
    omitted: int
    network: RankClasses
    tasks: Sequence[RankTask]
    prices: Prices
    start: Ticks
    end: Ticks
    delay: Ticks

    def hosts(self, number: int) -> Ticks:
        """By op of a rank class, for how many ticks its device waits for the host."""
        return host_waits(self.tasks[number], self.prices)


def _more(whole: WholeProgram, micro_batches: int) -> int:
    """How many micro-batches to simulate next: 5, 8, 12, 19 and so on, or all where nothing
    recurs."""
    count = whole.micro_batches
    recurs = whole.unit is not None or count == MICRO_BATCHES
    more = min(8 * count // 5, micro_batches) if recurs else micro_batches
    ops = len(whole.program.ops) * more // count
    if ops > MOST_OPS:
        raise PlanCannotRunError(
            f"micro-batches do not come to repeat themselves here: some {ops:,} ops would be "
            f"simulated, more than {MOST_OPS:,}, for the first {more:,} of {micro_batches:,} "
            "micro-batches; give a larger mbs or a smaller batch"
        )
    return more


def step_bytes(gpt: GPT, plan: Plan, behaviour: StackBehaviour = PLAIN_BEHAVIOUR) -> int:
    """What a device of a plan without a pipeline has in memory at most, to the byte, before
    anything is known of its time."""
    few = step_program(gpt, plan, min(MICRO_BATCHES, plan.micro_batches), behaviour=behaviour)
    while few.unit is None and few.micro_batches < plan.micro_batches:
        few = step_program(gpt, plan, _more(few, plan.micro_batches), behaviour=behaviour)
    return few.peak(plan.micro_batches - few.micro_batches).total_bytes


def step_program(
    gpt: GPT,
    plan: Plan,
    micro_batches: int = MICRO_BATCHES,
    *,
    fold: bool = True,
    forms: Forms = PLAIN,
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
) -> WholeProgram:
    """All layers of a plan without a pipeline, with so many of its micro-batches."""
    few = plan.with_micro_batches(min(micro_batches, plan.micro_batches))
    return whole_program(gpt, few, forms, behaviour, fold=fold)


def _timed(whole: WholeProgram, micro_batches: int, prices: Prices) -> TimedStep | None:
    """The step; None if it is not known how the micro-batches that were left out repeat."""
    omitted, network = micro_batches - whole.micro_batches, prices.network
    tasks = [RankTask(number, whole.graph) for number in range(len(network.ranks))]
    start, end = times_of(tasks, prices)
    delay = np.zeros((len(tasks), 1), dtype=np.int64)
    if omitted:
        each = _periods(whole, start, end)
        if each is None:
            return None
        if omitted * int(each.max()) + int(end.max()) > MOST_TICKS:
            raise PlanCannotRunError(TOO_LONG)
        delay = omitted * each
    if (delay != delay[0]).any():
        late = times_of(_begun_later(tasks, delay), prices)
        alike = [few + delay == more for few, more in zip((start, end), late, strict=True)]
        if not np.all(np.stack(alike)[:, :, : whole.recurring.last]):
            return None
        start, end = (times - delay for times in late)
        if _periods(whole, start, end) is None:
            return None
    return TimedStep(whole, omitted, network, tasks, prices, start, end, delay)


def _result(timed: TimedStep) -> StepResult:
    whole, omitted, late = timed.whole, timed.omitted, timed.end + timed.delay
    last, copies = last_to_end(late), whole.copies(omitted)
    hosts = timed.hosts(last)
    parts_ticks = breakdown(whole.graph, timed.start[last], timed.end[last], copies, hosts)
    assert sum(parts_ticks.values()) == late.max(), "every tick of a step goes to something"
    return _step(whole, copies, len(timed.network.ranks), parts_ticks, whole.peak(omitted))


def _begun_later(tasks: Sequence[RankTask], delay: Ticks) -> list[RankTask]:
    late = []
    for task, (ticks,) in zip(tasks, delay, strict=True):
        floors = np.zeros(len(task.graph.places), dtype=np.int64)
        floors[[stream[0] for stream in task.graph.streams]] = ticks
        late.append(replace(task, floors=floors))
    return late


def _periods(whole: WholeProgram, start: Ticks, end: Ticks) -> Ticks | None:
    if whole.unit is None:
        return None
    return periods(whole.unit, whole.followed, whole.graph.collectives, start, end)


def _step(
    whole: WholeProgram,
    copies: Counts,
    rank_classes: int,
    parts_ticks: dict[str, int],
    memory: MemoryUse,
) -> StepResult:
    totals = whole.graph.totals(whole.program.plan.grid.ranks, copies)
    return StepResult(
        parts_ticks=parts_ticks,
        stage_memory=(memory,),
        resident_bytes=_resident_bytes(whole),
        ops=totals.ops,
        comm_bytes=totals.payload,
        model_flops=totals.model_flops,
        hardware_flops=totals.flops,
        rank_classes=rank_classes,
        micro_batches=whole.micro_batches,
    )


def _resident_bytes(whole: WholeProgram) -> int:
    """What a device has in memory all the time, tokens left out."""
    return use_of(whole.persistent - whole.micro_batches * whole.inputs, "").total_bytes
