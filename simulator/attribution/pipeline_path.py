"""The critical path of a pipelined step by what its time goes to, for schedules of any length.

The path is walked back from the op that ends last: op by op through what comes after all slots and
the last slot of each stage, then slot by slot (`slot_path.py`). The ops of each different slot on
it are walked once, from the last compute op of the slowest of its stage's rank classes. Where an op
waits for a stream that an earlier slot left busy, the walk goes on in that slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.attribution.critical_path import (
    Cause,
    OpPlace,
    TaskWalk,
    lists_of,
    ticks_by_cause,
)
from simulator.costs.analytic import ComputeCosts
from simulator.engine.stream_graph import PIPE
from simulator.engine.streams import RankTask
from simulator.pipeline.pipeline_step import PipelineRun, asked_of_run
from simulator.pipeline.slot_cost import slowest_of
from simulator.pipeline.slot_path import SlotPath
from simulator.pipeline.stage_orders import stage_orders_of
from simulator.ranks.classes import Fabric
from workload.gpt import GPT
from workload.kinds import Work
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.plan import Plan
from workload.sizes.arrays import Ticks

MESSAGES = Cause(PIPE, Work.MESSAGES.value)


def pipeline_causes(
    gpt: GPT,
    plan: Plan,
    costs: ComputeCosts,
    fabric: Fabric,
    forms: Forms = PLAIN,
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
) -> dict[Cause, int]:
    """Ticks along the path by what they go to; they sum to the step's, to the tick."""
    orders = stage_orders_of(gpt, plan, forms, behaviour)
    return asked_of_run(orders, costs, fabric, lambda run: _Causes(run).whole())


class _Causes:
    """What the time of a run's path goes to, filed as it is walked."""

    def __init__(self, run: PipelineRun) -> None:
        self._run = run
        self._ticks: dict[Cause, int] = {}
        self._of_slots: dict[tuple[int, int], dict[Cause, int]] = {}

    def whole(self) -> dict[Cause, int]:
        """That of the whole path."""
        run, late = self._run, None
        walk = self._walk(run.ends.tasks, run.ends.times)
        at = walk.last()
        while walk.start(at := self._through(walk, at)):
            at = walk.held(at)
            start, stage = walk.start(at), run.network.stages[walk.tasks[at[0]].number]
            place = len(run.schedule.orders[stage]) - 1 if late is None else late.place
            part = run.ending_part(stage) if late is None else late.part
            if start == run.times.stages[stage].start[place]:
                self._through_slots(stage, place)
                break
            earlier = run.earlier[stage].until(part, at[1], start, place)
            if earlier is None:  # what comes after all slots starts when the last message is over
                self._through_slots(stage, place + 1)
                break
            late, at = earlier
            walk = self._walk(late.tasks, late.times)
        return self._ticks

    def _walk(self, tasks: Sequence[RankTask], times: Sequence[tuple[Ticks, Ticks]]) -> TaskWalk:
        hosts = [self._run.hosts(task).tolist() for task in tasks]
        return TaskWalk(self._run.network, tasks, lists_of(times), hosts)

    def _through(self, walk: TaskWalk, at: OpPlace) -> OpPlace:
        """File the ops from one back to the first of them."""
        *_, first = pieces = list(walk.back(at))
        self._add(ticks_by_cause([piece for _, piece in pieces]))
        return first[0]

    def _through_slots(self, stage: int, place: int) -> None:
        """File what comes before a slot."""
        run = self._run
        for what, where, at, ticks in SlotPath(run.schedule, run.times).back_from(stage, place):
            if what == PIPE:
                self._add({MESSAGES: ticks})
            elif ticks:
                self._add(self._of_slot(where, int(run.slots[where].which[at])))

    def _of_slot(self, stage: int, which: int) -> dict[Cause, int]:
        if (stage, which) not in self._of_slots:
            part, carry_ins = self._run.slots[stage].slots[which]
            tasks = self._run.tasks(stage, part, carry_ins)
            times = self._run.simulated(tasks)
            slowest, _ = slowest_of(tasks, times)
            walk, last = self._walk(tasks, times), int(part.graph.compute_ops[-1])
            pieces = [piece for _, piece in walk.back((slowest, last))]
            self._of_slots[stage, which] = ticks_by_cause(pieces)
        return self._of_slots[stage, which]

    def _add(self, ticks: Mapping[Cause, int]) -> None:
        for cause, each in ticks.items():
            self._ticks[cause] = self._ticks.get(cause, 0) + each
