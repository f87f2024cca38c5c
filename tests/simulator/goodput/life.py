"""One life of a run, event by event in SimPy: the reference of `simulator/goodput/draws.py`.

The run, its saves, failures, time limits and repairs are processes. What happens by chance is asked
of an iterator in the order in which it happens: for each attempt its time to a failure, and then
the repair of the broken node or the wait in the queue, all over their means.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.goodput.draws import Diary
from simulator.goodput.job import SETTLED_S, Run

Events = Generator[simpy.Event, Any, None]
Chances = Sequence[float] | NDArray[np.float64]
FAILURE, LIMIT, SAVE_NOW = "failure", "time limit", "save before the time limit"


class _Life:
    """The state that the processes of a life share."""

    def __init__(self, run: Run, work_s: float, chances: Iterator[Chances]) -> None:
        self.run, self.work_s, self.chances = run, work_s, chances
        self.clock = simpy.Environment()
        self.diary = Diary()
        self.trained_s, self.durable_s = 0.0, 0.0
        self.ready = simpy.Container(self.clock, init=run.pool.nodes if run.pool else 0)
        self.writers: list[simpy.Process] = []

    def jobs(self) -> Events:
        """Jobs until all of the training is durable."""
        while self.work_s - self.durable_s > SETTLED_S:
            began_s = self.clock.now
            queue = yield self.clock.process(self._job())
            self.diary.jobs.append((began_s, self.clock.now))
            if queue is not None and self.run.chain is not None:
                yield self.clock.timeout(queue * self.run.chain.queue_s)
        self.diary.total_s = self.clock.now

    def _job(self) -> Generator[simpy.Event, Any, float | None]:
        """A job with its attempts; returns the chance that decides how long the next waits."""
        chain = self.run.chain
        ends_s = self.clock.now + chain.walltime_s if chain else float("inf")
        spares = chain.spares if chain else 0
        while True:
            to_failure, *other = next(self.chances)
            why = yield self.clock.process(self._attempt(to_failure, ends_s))
            if why is None or self.work_s - self.durable_s <= SETTLED_S:
                return None
            if why == FAILURE:
                self.diary.failures.append(self.clock.now)
                left_s = ends_s - self.clock.now
                yield self.clock.timeout(min(self.run.detection_s, left_s))
            if self.run.pool is not None:
                self.clock.process(self._repair(other[0] * self.run.pool.repair_s))
                yield self.ready.get(1)
            if chain is None:
                continue
            if why == LIMIT or not spares or self.clock.now >= ends_s:
                return float(other[0])
            spares -= 1

    def _attempt(self, to_failure: float, ends_s: float) -> Generator[simpy.Event, Any, str | None]:
        """Training until it is done, fails or must save; returns why it ended undone."""
        now_s, rate = self.clock.now, self.run.failures_per_s
        self.trained_s = self.durable_s
        training = self.clock.process(self._train())
        timers = [
            self.clock.process(self._interrupt(training, ends_s - self.run.write_s, SAVE_NOW))
        ]
        timers += [self.clock.process(self._interrupt(training, ends_s, LIMIT))]
        if rate:
            failure_s = now_s + to_failure / rate
            timers += [self.clock.process(self._interrupt(training, failure_s, FAILURE))]
        why: str | None = yield training
        for process in (*timers, *self.writers):
            if process.is_alive:
                process.interrupt()
        self.writers.clear()
        return why

    def _interrupt(self, training: simpy.Process, at_s: float, why: str) -> Events:
        """Ends the training at a moment, or tells it to save."""
        if at_s == float("inf") or at_s < self.clock.now:
            return
        try:
            yield self.clock.timeout(at_s - self.clock.now)
        except simpy.Interrupt:
            return
        if training.is_alive:
            training.interrupt(why)

    def _train(self) -> Generator[simpy.Event, Any, str | None]:
        """A restart, then training with saves; a stall for the end's save is its whole write."""
        run = self.run
        try:
            yield self.clock.timeout(run.restart_s)
            while self.work_s - self.trained_s > SETTLED_S:
                yield from self._segment(min(run.interval_s, self.work_s - self.trained_s))
                if self.work_s - self.trained_s > SETTLED_S:
                    self._begin_write()
                    yield self.clock.timeout(run.stall_s)
        except simpy.Interrupt as end:
            return (yield from self._last_save()) if end.cause == SAVE_NOW else str(end.cause)
        final = self._begin_write()
        while final.is_alive:  # it began before the save for the time limit, and so ends in time
            try:
                yield final
            except simpy.Interrupt as end:
                if end.cause != SAVE_NOW:
                    return str(end.cause)
        return None

    def _segment(self, length_s: float) -> Events:
        """Training up to a save; what was trained when it is interrupted counts."""
        began_s = self.clock.now
        before_s = self.trained_s
        try:
            yield self.clock.timeout(length_s)
        except simpy.Interrupt:
            self.trained_s = before_s + self.clock.now - began_s
            raise
        self.trained_s = min(before_s + length_s, self.work_s)

    def _last_save(self) -> Generator[simpy.Event, Any, str]:
        """The save before a time limit, which is written when the limit is reached; there is none
        where the last one that began has all of the training."""
        try:
            yield self.clock.event()
        except simpy.Interrupt as end:
            if end.cause == LIMIT and self.trained_s > self.durable_s:
                self._keep(self.trained_s)
            return str(end.cause)
        raise AssertionError("unreachable: the job ends with its time limit")

    def _begin_write(self) -> simpy.Process:
        self.writers.append(self.clock.process(self._write(self.trained_s)))
        return self.writers[-1]

    def _write(self, trained_s: float) -> Events:
        """A save: durable when it is written, nothing if it is cut off."""
        try:
            yield self.clock.timeout(self.run.write_s)
        except simpy.Interrupt:
            return
        self._keep(trained_s)

    def _keep(self, trained_s: float) -> None:
        self.durable_s = max(self.durable_s, trained_s)
        self.diary.saves.append((self.clock.now, self.durable_s))

    def _repair(self, repair_s: float) -> Events:
        """A broken node comes back as a spare."""
        yield self.clock.timeout(repair_s)
        yield self.ready.put(1)


def live(run: Run, work_s: float, chances: Iterator[Chances]) -> Diary:
    """A life of the run whose training takes `work_s` without a break."""
    life = _Life(run, work_s, chances)
    life.clock.process(life.jobs())
    life.clock.run()
    return life.diary
