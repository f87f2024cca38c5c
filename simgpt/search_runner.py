"""The searches of one command: the one that was asked for, and those along its fronts.

All of them end when nobody waits any longer; what is known by then is the answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from simgpt import options
from simgpt.near_batches import FASTER, worth_a_search
from simgpt.search_output import moment
from topologies.errors import SimgptError
from topologies.records import record

if TYPE_CHECKING:
    from simgpt.interrupts import Patience
    from simulator.predict import Prediction
    from simulator.search import Progress, SearchProblem
    from simulator.uncertainty.anchors import QuestionAnchors
    from topologies.machine import Machine

FRONT = 4  # plans with less memory than the best one


@record(slots=False)
class Searches:
    """How to search: for the `top` plans that are best in an `objective` on a machine whose ranks
    are placed by a `policy`, with so many `workers` (None: one for each core), or `exhaustive`ly.
    A best plan that can miss the best there is by no more than a share `gap` is good enough. The
    search itself is blind; its plans are scaled by `anchors` afterwards, all of one question by the
    same factor, which leaves their order as it is."""

    machine: Machine
    policy: str
    patience: Patience
    objective: str
    top: int
    workers: int | None
    exhaustive: bool
    gap: float
    anchors: QuestionAnchors

    def anchored(self, prediction: Prediction) -> Prediction:
        """A plan's prediction scaled by the anchors of its question, as all plans of that are."""
        by = self.anchors.of(prediction.place)
        return prediction if by is None else prediction.scaled(by)

    def anchored_problem(self, problem: SearchProblem) -> SearchProblem:
        """A problem with the room that measured peaks leave for its plans, where anchors have any:
        for all of them the same (`MemoryAnchoring.room`)."""
        from simulator.step_memory import room_for
        from simulator.uncertainty.anchors import place_of
        from workload.plan import Plan

        kept = {key: problem.fixed[key] for key in ("precision", "recipe") if key in problem.fixed}
        plan = Plan.of(dp=problem.devices, batch=problem.devices, mbs=1, **kept)
        place = place_of(problem.gpt, plan, problem.stack, self.machine.device.known_as)
        by = self.anchors.memory_of(place)
        if by is None:
            return problem
        room = room_for(self.machine, problem.stack, experts=bool(problem.gpt.moe.experts))
        return replace(problem, room=by.room(room))

    def anchored_state(self, state: Progress) -> Progress:
        """A search's state with its plans anchored, and the bound on the others likewise."""
        found = tuple(map(self.anchored, state.found))
        families = {name: self.anchored(each) for name, each in state.families.items()}
        anchoring = found[0].anchoring if found else None
        factor = 1.0 if anchoring is None else anchoring.factor
        bound, best = state.bound * factor, state.best * factor
        return replace(state, found=found, bound=bound, best=best, families=families)

    def answer(self, problem: SearchProblem, *, alone: bool = True) -> Progress | None:
        """How far a search came: to its end, or as far as somebody waited; None if nowhere. One of
        a front, and so not `alone`, that loses a process ends in its error: what is not certain is
        left out there."""
        from simulator.search import checked

        last = self._watched(self._states(problem), alone=alone)
        return last if last is None else checked(last)

    def _states(
        self, problem: SearchProblem, capacity_bytes: int | None = None
    ) -> Iterator[Progress]:
        from simulator.search import search
        from simulator.search.baselines import exhaustive
        from topologies.placement import with_room
        from topologies.placement_names import parse_placement

        machine = with_room(self.machine, problem.devices)
        problem = self.anchored_problem(problem)
        placed = parse_placement(self.policy, machine, problem.devices)
        if self.exhaustive and capacity_bytes is None:
            return exhaustive(
                problem, machine, placement=placed, top=self.top, objective=self.objective
            )
        return search(
            problem,
            machine,
            placement=placed,
            top=self.top,
            workers=self.workers or len(os.sched_getaffinity(0)),
            capacity_bytes=capacity_bytes,
            objective=self.objective,
        )

    def _watched(
        self,
        states: Iterator[Progress],
        *,
        alone: bool = True,
        decided: Callable[[Progress], bool] | None = None,
    ) -> Progress | None:
        """The last state, or the one in which all that is asked is decided, or the patience or,
        unless it is not `alone` but one of a front, one of the processes ends."""
        from simgpt.progress import Ticker
        from simulator.search import SearchError

        state = None
        try:
            with Ticker() as progress, self.patience.heeded():
                for state in states if self.patience.over is None else ():
                    progress(
                        moment(state, self.objective),
                        share=state.bounded,
                        at_most_s=self.patience.left_s,
                    )
                    is_decided = decided is not None and decided(state)
                    if self.patience.over is not None or self._is_good(state) or is_decided:
                        break
        except SearchError as error:
            if state is None or not state.found or not alone:
                raise
            options.note(f"{error}; the best plan so far is the answer")
        return state

    def _is_good(self, state: Progress) -> bool:
        return bool(state.found) and 0 < self.gap >= state.gap

    def _is_certain(self, state: Progress | None) -> bool:
        return state is not None and (state.is_optimal or self._is_good(state))

    def memory_front(self, problem: SearchProblem, state: Progress) -> list[Prediction]:
        """The best plan, then ever again the best that needs a tenth less memory or still less."""
        from simulator.search import SearchError

        front = list(state.found[:1])
        once = replace(self, top=1)
        while front and len(front) <= FRONT:
            room = front[-1].memory.peak_bytes * 9 // 10
            try:
                found = once._watched(once._states(problem, room), alone=False)
            except SearchError as error:
                options.note(f"{error}")
                found = None
            if found is None or not self._is_certain(found):
                options.note("stopped early: plans that need still less memory are left out")
                break
            if not found.found:
                break
            front.append(found.found[0])
        return front

    def devices_front(
        self, problem: SearchProblem, state: Progress, others: tuple[int, ...]
    ) -> list[Prediction]:
        """The best plan of each number of devices that is faster, or cheaper in node-hours, than
        those of all others."""
        fastest = replace(self, top=1, objective="time")
        found = list(state.found[:1]) if self.objective == "time" else []
        known = {prediction.devices for prediction in found}
        for devices in sorted({*others, problem.devices} - known):
            try:
                last = fastest.answer(replace(problem, devices=devices), alone=False)
            except SimgptError as error:
                options.note(f"{devices:,} devices are left out: {error}")
                continue
            if last is None or not self._is_certain(last):
                options.note(f"stopped early: {devices:,} devices are left out")
            else:
                found += last.found
        found.sort(key=lambda each: each.devices)
        found = list(map(self.anchored, found))
        return [each for each in found if not any(_is_beaten(each, by) for by in found)]

    def faster_batches(self, problem: SearchProblem, state: Progress) -> list[int]:
        """At most two near batches with a plan that is faster per sequence than the best one by
        more than a share FASTER.

        Each takes a search, which ends at the first such plan, or once there can be none. A batch
        that the devices divide has no such neighbours, so nothing is spent on it.
        """
        if self.exhaustive or not state.found or not self._is_certain(state):
            return []
        best = state.best / problem.batch / (1 + FASTER)
        once, found = replace(self, top=1, gap=0.0), []
        for batch in worth_a_search(problem.batch, problem.devices):
            least = best * batch
            try:
                states = once._states(replace(problem, batch=batch))
                last = once._watched(states, alone=False, decided=partial(_is_past, least))
            except SimgptError as error:
                options.note(f"a batch of {batch:,} sequences is left out: {error}")
                continue
            if last is None or self.patience.over is not None:
                options.note(f"stopped early: a batch of {batch:,} sequences is left out")
            elif last.found and last.best < least:
                found.append(batch)
        return found


def _is_past(value: float, state: Progress) -> bool:
    """Whether a search has found a plan below a value, or proved that there is none."""
    return state.best < value or state.bound > value


def _is_beaten(each: Prediction, by: Prediction) -> bool:
    mine, its = ((p.step_s, p.cost.node_s_per_step) for p in (each, by))
    return its[0] <= mine[0] and its[1] <= mine[1] and its != mine
