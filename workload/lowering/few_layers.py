"""Which layers of a stage are lowered, where a few of those that are alike stand for all.

A kind is what a layer's ops follow from: its mixer, experts or one MLP, its window, how often each
expert is chosen, what of it is recomputed. Where a stretch of kinds comes many times in a row (58
layers with experts behind 3 dense ones; 18 times a layer with a window and one without), so many
turns of it are lowered that what crosses layers reaches neither end; those in the middle are left
out, and `simulator/engine/cut.py` puts them in again. All other layers are lowered as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from topologies.records import record
from workload.gpt import GPT
from workload.lowering.recompute import recomputed
from workload.op import Part, layer_part
from workload.overlaps import mattering
from workload.passes.stack import StackBehaviour
from workload.plan import Plan
from workload.stages import Kind, chunk_layers, kind_of, places_of

NOT_OFFLOADED = "none"
LONGEST = 8  # layers of a turn
OFFLOAD_REACH = 2  # layers over which copies to the host and back are in flight


@record(slots=False)
class Run:
    """Layers that recur: `lowered` are those that are, `missing` those left out behind the first
    half of them, in turns of `period` layers each."""

    lowered: tuple[int, ...]
    missing: tuple[int, ...]
    period: int

    @property
    def turns(self) -> int:
        """How many turns are lowered."""
        return len(self.lowered) // self.period

    @property
    def more(self) -> int:
        """How many turns are left out."""
        return len(self.missing) // self.period

    @property
    def before(self) -> int:
        """How many of the turns that are lowered come before those left out."""
        return self.turns // 2

    @property
    def standing_in(self) -> tuple[int, ...]:
        """The layers that stand for those left out: the turn before these."""
        return self.lowered[(self.before - 1) * self.period : self.before * self.period]


@record(slots=False)
class FewLayers:
    """The layers of each part of the model that are lowered, of parts that have `runs` only some
    of them."""

    parts: Sequence[Sequence[int]]
    runs: tuple[Run, ...] = ()

    @cached_property
    def counts(self) -> Mapping[Part, int]:
        """How many layers each stands for that stands for several."""
        return {layer_part(n): 1 + run.more for run in self.runs for n in run.standing_in}


def every_layer(gpt: GPT, plan: Plan) -> FewLayers:
    """All layers."""
    return FewLayers(chunk_layers(gpt, plan))


def few_layers(gpt: GPT, plan: Plan, stage: int = 0, turns: int = 0) -> FewLayers:
    """The layers of a stage that are lowered, with so many turns of each run, or as many as what
    crosses layers asks for."""
    parts: list[Sequence[int]] = list(chunk_layers(gpt, plan))
    runs = list[Run]()
    for number in sorted(set(places_of(plan).parts(stage))):
        parts[number], own = _few(gpt, plan, parts[number], turns or enough_turns(plan))
        runs += own
    return FewLayers(parts, tuple(runs))


def enough_turns(plan: Plan) -> int:
    """How many turns of layers are enough, that no op in flight in the middle reaches an end."""
    reach = [1, *(each.reach for each in mattering(plan.training.overlap, plan.sizes))]
    if plan.training.offload != NOT_OFFLOADED:
        reach.append(OFFLOAD_REACH)
    return 2 * max(reach) + 2


def can_be_few(gpt: GPT, plan: Plan, behaviour: StackBehaviour) -> bool:
    """Whether a few layers can stand for all: not where layers of two micro-batches take turns,
    since one goes up while the other goes down, nor where the update goes by the numbers of all
    parameters."""
    turns = "a2a" in plan.training.overlap and plan.ep > 1
    return not turns and not behaviour.held.updates_in_groups(gpt, plan)


def _few(
    gpt: GPT, plan: Plan, layers: Sequence[int], turns: int
) -> tuple[Sequence[int], Iterator[Run]]:
    """The layers of a chunk that are lowered, with its runs."""
    kinds = [(*kind_of(gpt, n), recomputed(plan, at)) for at, n in enumerate(layers)]
    found, lowered, at = list[Run](), list[int](), 0
    while at < len(kinds):
        period, count = _longest(kinds, at, turns)
        first, last = turns // 2 * period, (turns - turns // 2) * period
        own = list(layers[at : at + period * count])
        if count > turns:
            kept = (*own[:first], *own[len(own) - last :])
            found.append(Run(kept, tuple(own[first : len(own) - last]), period))
            own = list(kept)
        lowered += own
        at += period * count
    return (lowered if found else layers), iter(found)


def _longest(kinds: Sequence[Kind], at: int, turns: int) -> tuple[int, int]:
    """The stretch from a layer on that comes more than so many times in a row and leaves out most
    layers: its length, and how many times; (1, 1) where there is none."""
    counts = {period: _times(kinds, at, period) for period in range(1, LONGEST + 1)}
    left_out = {period: period * (count - turns) for period, count in counts.items()}
    period = max(left_out, key=lambda each: (left_out[each], -each))
    return (period, counts[period]) if left_out[period] > 0 else (1, 1)


def _times(kinds: Sequence[Kind], at: int, period: int) -> int:
    """How many times in a row the stretch of so many kinds comes that begins there."""
    count = 1
    while kinds[at : at + period] == kinds[at + count * period : at + (count + 1) * period]:
        count += 1
    return count
