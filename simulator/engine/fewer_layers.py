"""Which layers of a model recur, and the model of fewer layers that has the same kinds in the same
order.

A kind is what a layer's ops follow from: its mixer, experts or one MLP, its window, how often each
expert is chosen, what of it is recomputed.
Where a stretch of kinds comes many times in a row (58 layers with experts behind 3 dense ones; 18
times a layer with a window and one without), a few of these stand for all. What stands between is
kept as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from topologies.records import record
from workload.expert_loads.histogram import without_layers
from workload.gpt import GPT
from workload.lowering.recompute import recomputed
from workload.models.mtp import every_layer
from workload.overlaps import mattering
from workload.plan import Plan
from workload.repetition import IrregularError, Repeat
from workload.stages import Kind, kind_of

# How many turns of a run are kept, until what is in flight across layers reaches neither end: from
# the first number on, or from the second where overlaps or copies to the host may cross layers.
# None is a power of two: sizes that are rounded up to one would seem to grow evenly there.
LENGTHS = 5, 6, 9, 18, 36
LONGEST = 8  # layers of a turn
WITH_THE_UPDATE = "none", "optimizer"  # values of offload that copy nothing while layers run


class Run(NamedTuple):
    """Layers that recur: the first of them, the layers of a turn, and how many turns there are."""

    first: int
    period: int
    turns: int


@record(slots=False)
class FewerLayers:
    """A model whose layers recur in `runs`; all others are in none of them. `crossing` names
    the plan's overlaps whose collectives may end in a later layer."""

    gpt: GPT
    plan: Plan
    runs: tuple[Run, ...]
    crossing: tuple[str, ...] = ()

    def lengths(self, enough: int = 0) -> Iterator[tuple[int, ...]]:
        """Numbers of turns to keep of each run, from `enough` on if that is known; each further one
        is for programs that do not repeat with fewer."""
        in_flight = bool(self.crossing) or self.plan.training.offload not in WITH_THE_UPDATE
        for turns in LENGTHS:
            if turns >= (enough or LENGTHS[in_flight]) and self._is_worth(
                (turns,) * len(self.runs)
            ):
                yield (turns,) * len(self.runs)

    def _is_worth(self, kept: Sequence[int]) -> bool:
        """Whether models with so many turns, and those that tell how sizes grow, have fewer layers
        in all than this one."""
        if not self.runs or any(n >= run.turns for n, run in zip(kept, self.runs, strict=True)):
            return False
        counts = [self._layers(each) for each in (kept, *self.smallest())]
        return sum(counts) < self.gpt.layers

    def smallest(self) -> list[tuple[int, ...]]:
        """One turn of each run; and for each run in its turn the same with two of it."""
        one = (1,) * len(self.runs)
        return [one, *((*one[:at], 2, *one[at + 1 :]) for at in range(len(one)))]

    def repeats(self, kept: Sequence[int]) -> tuple[Repeat, ...]:
        """The runs as they are in the model that keeps so many turns of each."""
        found, before = [], 0
        for (first, period, count), own in zip(self.runs, kept, strict=True):
            found.append(Repeat(first - before, period, own, count))
            before += found[-1].left_out
        return tuple(found)

    def with_turns(self, kept: Sequence[int]) -> tuple[GPT, Plan]:
        """The model with so many turns of each run, and the plan for it; an IrregularError where no
        model has just these kinds of layers."""
        gpt, plan, kinds = self.gpt, self.plan, kinds_of(self.gpt, self.plan)
        left_out = [each.left_out for each in self.repeats(kept)]
        for run, fewer in reversed(list(zip(self.runs, left_out, strict=True))):
            gpt, plan = _without(gpt, plan, run.first, fewer)
            del kinds[run.first : run.first + fewer]
        if kinds_of(gpt, plan) != kinds:
            raise IrregularError("no model has just these kinds of layers")
        return gpt, plan

    def _layers(self, kept: Sequence[int]) -> int:
        return self.gpt.layers - sum(each.left_out for each in self.repeats(kept))


def _without(gpt: GPT, plan: Plan, first: int, fewer: int) -> tuple[GPT, Plan]:
    """The model and plan without so many layers from the first on, which are all of one stretch."""
    dense = gpt.moe.dense_layers - (fewer if first < gpt.moe.dense_layers else 0)
    word, colon, count = plan.training.recompute.partition(":")
    if colon and first < int(count):
        plan = plan.changed(recompute=f"{word}:{max(int(count) - fewer, 1)}")
    if plan.pipeline.stage_layers:
        plan = plan.changed(stage_layers=(gpt.layers - fewer,))
    pattern = gpt.pattern[:first] + gpt.pattern[first + fewer :]
    gpt = without_layers(gpt, first, fewer)
    return gpt.changed(layers=gpt.layers - fewer, dense_layers=dense, pattern=pattern), plan


def fewer_layers(gpt: GPT, plan: Plan) -> FewerLayers:
    """The runs of a model's layers under a plan of one stage."""
    crossing = tuple(
        each.name for each in mattering(plan.training.overlap, plan.sizes) if each.across
    )
    whole = plan.pipeline.stage_layers in ((), (gpt.layers,))
    runs = _runs(kinds_of(gpt, plan)[: gpt.layers]) if whole else []
    return FewerLayers(gpt, plan, tuple(runs), crossing)


def kinds_of(gpt: GPT, plan: Plan) -> list[Kind]:
    """The kinds of all layers, and of a module for a second token behind them."""
    every = every_layer(gpt)
    return [(*kind_of(gpt, layer), recomputed(plan, layer)) for layer in every]


def _runs(kinds: Sequence[Kind]) -> list[Run]:
    """The stretches that come often enough in a row to leave some of them out, from the first."""
    found, at = list[Run](), 0
    while at < len(kinds):
        periods = range(1, min(LONGEST, len(kinds) - at) + 1)
        turns = {period: _turns(kinds, at, period) for period in periods}
        period = max(turns, key=lambda each: (each * turns[each], -each))
        if 2 * turns[period] > 3 * LENGTHS[0]:
            found.append(Run(at, period, turns[period]))
            at += period * turns[period]
        else:
            at += 1
    return found


def _turns(kinds: Sequence[Kind], at: int, period: int) -> int:
    """How many times in a row the stretch of so many kinds comes that begins there."""
    count = 1
    while kinds[at : at + period] == kinds[at + count * period : at + (count + 1) * period]:
        count += 1
    return count
