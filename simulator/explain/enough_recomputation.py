"""The least costly recomputation with which a plan fits: parts of layers, or some of them whole."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property, partial

from simulator.explain.changed_plan import Change, can_run, fits, peak_bytes
from simulator.explain.recomputations import Recomputation, estimated_bytes, recomputations
from simulator.predict import Prediction
from topologies.machine import Machine
from topologies.records import record
from workload.plan import Plan

TRIES = 2  # estimates of enough that are counted to the byte
UNSURE = 2.0  # how many times as long one of two recomputations may be estimated to take


@record(slots=False)
class EnoughRecomputation:
    """What may run again so that a plan fits, given the change by which `whole` layers do. What is
    estimated to be enough is `predicted` at once, if anything is: its time is wanted next."""

    prediction: Prediction
    machine: Machine
    whole: Change
    predicted: Callable[[Plan], Prediction] | None = None

    def changes(self) -> list[Change]:
        """The least costly parts of layers that are enough, and the fewest whole layers; one of
        the two alone where it is estimated to take far less time."""
        if self._least_bytes > self.prediction.memory.sure_bytes:
            return []
        parts, layers = self._likely(of_layers=False), self._likely(of_layers=True)
        if parts and layers:
            most_s = UNSURE * min(parts[0].seconds, layers[0].seconds)
            parts, layers = (few if few[0].seconds <= most_s else [] for few in (parts, layers))
        return [*self._first(parts), *self._fewest(layers)] or [self.whole]

    @cached_property
    def _least_bytes(self) -> int:
        """The peak where whole layers run again."""
        return peak_bytes(self.prediction, self.whole)

    @cached_property
    def _every(self) -> tuple[Recomputation, ...]:
        asked = self.prediction
        plan = asked.plan.changed(matmul_forms="plain")
        return recomputations(asked.gpt, plan, asked.stack, self.machine)

    def _likely(self, *, of_layers: bool) -> list[Recomputation]:
        """What is estimated to leave room, the least costly first."""
        asked, memory = self.prediction, self.prediction.memory
        peaks = {"most_bytes": memory.peak_bytes, "least_bytes": self._least_bytes}
        whole = max(self._every, key=lambda each: (each.of_layers, each.saved_bytes), default=None)
        return [
            each
            for each in self._every
            if each.of_layers is of_layers and whole is not None
            if estimated_bytes(each, whole, asked.plan, asked.gpt.layers, **peaks)
            <= memory.sure_bytes
        ]

    def _first(self, those: Sequence[Recomputation]) -> list[Change]:
        """The first of some that is enough, if one of the first few is."""
        few = map(self._change, those[:TRIES])
        return next(([each] for each in few if self._fits(each)), [])

    def _fewest(self, likely: Sequence[Recomputation]) -> list[Change]:
        """The fewest layers that are enough, of which some are likely to be: in a pipeline, whose
        stages hold more or less than their share, to the byte."""
        if self.prediction.plan.pp == 1 or not likely:
            return self._first(likely)
        every = [self._change(each) for each in self._every if each.of_layers]
        return [every[bisect_left(every, True, key=partial(fits, self.prediction))]]

    def _fits(self, change: Change) -> bool:
        if self.predicted is None or not can_run(self.prediction, change):
            return fits(self.prediction, change)
        return self.predicted(self.prediction.plan.changed(**change)).memory.is_sure

    def _change(self, what: Recomputation) -> Change:
        return self.whole | {"recompute": what.words}
