"""Which layers of a stage are lowered, where a few of those that are alike stand for all.

A kind is what a layer's ops follow from: its mixer, experts or one MLP, its window, how often each
expert is chosen, what of it is recomputed. Where a stretch of kinds comes many times in a row (58
layers with experts behind 3 dense ones; 18 times a layer with a window and one without), so many
turns of it are lowered that what crosses layers reaches neither end; those in the middle are left
out, and `simulator/engine/cut.py` puts them in again. All other layers are lowered as they are.
Of chunks in a row on one stage that hold layers of the same kinds the first ones are lowered: their
slots stand for those of the others, whose layers are put in where the step ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from topologies.records import record
from workload.gpt import GPT
from workload.lowering.recompute import recomputed
from workload.models import moe
from workload.op import Part, layer_part
from workload.overlaps import mattering
from workload.passes.stack import StackBehaviour
from workload.pipeline.schedule import OPPOSED
from workload.plan import Plan
from workload.stages import Kind, chunk_layers, kind_of, places_of

NOT_OFFLOADED = "none"
LONGEST = 8  # layers of a turn
OFFLOAD_REACH = 2  # layers over which copies to the host and back are in flight


@record(slots=False)
class Run:
    """Layers that recur: `lowered` are those that are, `missing` those left out behind the first
    half of them, in turns of `period` layers each. They are missing everywhere, or where the step
    ends alone, `at_end`."""

    lowered: tuple[int, ...]
    missing: tuple[int, ...]
    period: int
    at_end: bool = False

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
    def every(self) -> tuple[int, ...]:
        """All its layers in their order."""
        split = self.before * self.period
        return (*self.lowered[:split], *self.missing, *self.lowered[split:])


@record(slots=False)
class FewLayers:
    """The layers of each part of the model that are lowered, of parts that have `runs` only some
    of them, of others none: `like` says for each chunk of the stage which stands for it. `counts`
    has for how many layers each stands that stands for several."""

    parts: Sequence[Sequence[int]]
    runs: Sequence[Run] = ()
    like: Sequence[int] = ()
    counts: Mapping[Part, int] = field(default_factory=dict)

    def has_slots(self, chunk: int) -> bool:
        """Whether slots of a chunk are lowered."""
        return not self.like or self.like[chunk] == chunk


def every_layer(gpt: GPT, plan: Plan) -> FewLayers:
    """All layers."""
    return FewLayers(chunk_layers(gpt, plan))


def few_layers(gpt: GPT, plan: Plan, stage: int = 0) -> FewLayers:
    """The layers of a stage that are lowered, as many as what crosses layers asks for."""
    parts: list[Sequence[int]] = list(chunk_layers(gpt, plan))
    whole, places, turns = list(parts), places_of(plan), enough_turns(plan)
    numbers, runs, counts = places.numbers(stage), list[Run](), dict[int, int]()
    for part in sorted(set(map(places.part, numbers))):
        parts[part], own = _few(gpt, plan, parts[part], turns)
        runs += own
        for run in own:
            standing = run.lowered[(run.before - 1) * run.period : run.before * run.period]
            counts |= dict.fromkeys(standing, 1 + run.more)
    like = list(range(len(numbers)))
    chunks = [whole[places.part(each)] for each in numbers]
    for group in _like_chunks(gpt, plan, chunks):
        period, count = _repeated(_kinds(gpt, plan, chunks[group.start]))
        kept, left = group[: -(-turns // count)], group[-(-turns // count) :]
        for chunk in left:
            parts[numbers[chunk]], like[chunk] = [], group.start
        if left:
            runs.append(_at_end([chunks[each] for each in group], len(kept), period))
            counts |= {n: (1 + len(left)) * counts.get(n, 1) for n in parts[numbers[group.start]]}
    return FewLayers(parts, runs, like, {layer_part(n): each for n, each in counts.items()})


def _like_chunks(gpt: GPT, plan: Plan, chunks: Sequence[Sequence[int]]) -> list[range]:
    """The chunks of a stage in a row, several, that hold layers of the same kinds: no end of the
    model, nor the layer whose loss is the stage's first; none where slots go through several chunks
    or others of the stage."""
    if plan.passes > 1 or plan.pipeline.schedule in OPPOSED:
        return []
    experts = (n for own in chunks for n in own if moe.has_experts(gpt, n))
    apart = {0, gpt.layers - 1, next(experts, 0) if gpt.moe.balance_loss else 0}
    kinds = [None if apart.intersection(own) else _kinds(gpt, plan, own) for own in chunks]
    found, first = list[range](), 0
    for at in range(1, len(chunks) + 1):
        if at == len(chunks) or kinds[at] != kinds[first]:
            found += [range(first, at)] if at > first + 1 and kinds[first] else []
            first = at
    return found


def _at_end(chunks: Sequence[Sequence[int]], kept: int, period: int) -> Run:
    """The run of layers of chunks of which the first ones are lowered."""
    lowered, missing = ([n for own in some for n in own] for some in (chunks[:kept], chunks[kept:]))
    return Run(tuple(lowered), tuple(missing), period, at_end=True)


def _repeated(kinds: Sequence[Kind]) -> tuple[int, int]:
    """The shortest stretch that some kinds repeat, and how often; (1, 0) of none."""
    for period in range(1, len(kinds) + 1):
        count, rest = divmod(len(kinds), period)
        if not rest and _times(kinds, 0, period) == count:
            return period, count
    return 1, 0


def _kinds(gpt: GPT, plan: Plan, layers: Sequence[int]) -> list[Kind]:
    """The kinds of the layers of a chunk."""
    return [(*kind_of(gpt, n), recomputed(plan, at)) for at, n in enumerate(layers)]


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
) -> tuple[Sequence[int], list[Run]]:
    """The layers of a chunk that are lowered, with its runs."""
    kinds = _kinds(gpt, plan, layers)
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
    return (lowered if found else layers), found


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
