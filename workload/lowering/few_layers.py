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

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import field

from topologies.records import record
from workload.gpt import GPT
from workload.lowering.recompute import recomputed
from workload.models import moe
from workload.op import NONE, Part, layer_part
from workload.overlaps import mattering
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.pipeline.schedule import OPPOSED
from workload.plan import Plan
from workload.stages import Kind, chunk_layers, kind_of, places_of

NOT_OFFLOADED = "none"
LONGEST = 8  # layers of a turn
WORTH = 2  # layers that a run has to leave out, as to put them in again takes time too
OFFLOAD_REACH = 2, 2  # layers over which copies to the host and back are in flight


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
    """The layers of each part of the model that are lowered: of parts that have `runs` only so many
    `turns` of them, of others none. `like` says for each chunk of the stage which stands for it,
    `counts` for how many layers each stands that stands for several."""

    turns: int
    parts: Sequence[Sequence[int]]
    runs: Sequence[Run] = ()
    like: Sequence[int] = ()
    counts: Mapping[Part, int] = field(default_factory=dict)

    def has_slots(self, chunk: int) -> bool:
        """Whether slots of a chunk are lowered."""
        return not self.like or self.like[chunk] == chunk


def every_layer(gpt: GPT, plan: Plan) -> FewLayers:
    """All layers."""
    return FewLayers(0, chunk_layers(gpt, plan))


def few_layers(
    gpt: GPT, plan: Plan, stage: int = 0, behaviour: StackBehaviour = PLAIN_BEHAVIOUR
) -> Iterator[FewLayers]:
    """The layers of a stage that are lowered: as few as will mostly do, then as many as what
    crosses layers asks for. None where a few cannot stand for all: where layers of two
    micro-batches take turns, since one goes up while the other goes down, and where the update goes
    by the numbers of all parameters."""
    turns = "a2a" in plan.training.overlap and plan.ep > 1
    if turns or behaviour.held.updates_in_groups(gpt, plan):
        return
    for reach in reaches(plan):
        found = with_turns(gpt, plan, stage, 2 * reach + 2, behaviour)
        if found.runs:
            yield found


def in_flight(plan: Plan, behaviour: StackBehaviour) -> Hashable:
    """All that decides, with the model, how many turns are enough."""
    split = plan.zero, plan.z > 1, plan.dp > 1, plan.cp > 1, plan.tp > 1, plan.ep > 1, plan.sp
    return behaviour, plan.training.overlap, plan.training.offload, split


def with_turns(
    gpt: GPT, plan: Plan, stage: int, turns: int, behaviour: StackBehaviour = PLAIN_BEHAVIOUR
) -> FewLayers:
    """The layers of a stage that are lowered, with so many turns of each run."""
    parts: list[Sequence[int]] = list(chunk_layers(gpt, plan))
    whole, places, kinds = list(parts), places_of(plan), _Kinds(gpt, plan, stage)
    numbers, counts = places.numbers(stage), dict[int, int]()
    runs_of = dict[int, list[Run]]()
    for part in sorted(set(map(places.part, numbers))):
        parts[part], runs_of[part] = _few(kinds, parts[part], turns)
        for run in runs_of[part]:
            standing = run.lowered[(run.before - 1) * run.period : run.before * run.period]
            counts |= dict.fromkeys(standing, 1 + run.more)
    at_end = list[Run]()
    like = list(range(len(numbers)))
    chunks = [whole[places.part(each)] for each in numbers]
    apart = not behaviour.held.gradients_until_end  # no buffer is of several chunks
    for group in _like_chunks(kinds, chunks) if apart else ():
        period, count = _repeated(kinds(chunks[group.start]))
        kept, left = group[: -(-turns // count)], group[-(-turns // count) :]
        for chunk in left:
            parts[numbers[chunk]], like[chunk] = [], group.start
            del runs_of[numbers[chunk]]
        if left:
            at_end.append(_at_end([chunks[each] for each in group], len(kept), period))
            counts |= {n: (1 + len(left)) * counts.get(n, 1) for n in parts[numbers[group.start]]}
    runs = [run for own in runs_of.values() for run in own]
    stands_for = {layer_part(n): each for n, each in counts.items()}
    return FewLayers(turns, parts, [*runs, *at_end], like, stands_for)


def _like_chunks(kinds: _Kinds, chunks: Sequence[Sequence[int]]) -> list[range]:
    """The chunks of a stage in a row, several, that hold layers of the same kinds and no end of the
    model; none where slots go through several chunks or others of the stage."""
    if kinds.plan.passes > 1 or kinds.plan.pipeline.schedule in OPPOSED:
        return []
    ends = {0, kinds.gpt.layers - 1}
    every = [None if ends.intersection(own) else kinds(own) for own in chunks]
    found, first = list[range](), 0
    for at in range(1, len(chunks) + 1):
        if at == len(chunks) or every[at] != every[first]:
            found += [range(first, at)] if at > first + 1 and every[first] else []
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


class _Kinds:
    """The kinds of layers of a stage's chunks: the layer whose loss is the stage's first is of a
    kind of its own."""

    def __init__(self, gpt: GPT, plan: Plan, stage: int) -> None:
        self.gpt, self.plan = gpt, plan
        parts, whole = places_of(plan).parts(stage), chunk_layers(gpt, plan)
        experts = (n for part in parts for n in whole[part] if moe.has_experts(gpt, n))
        self._first = next(experts, NONE) if gpt.moe.balance_loss else NONE

    def __call__(self, layers: Sequence[int]) -> list[Kind]:
        """Find the kinds of a chunk's layers."""
        gpt, plan = self.gpt, self.plan
        pairs = enumerate(layers)
        return [(*kind_of(gpt, n), recomputed(plan, at), n == self._first) for at, n in pairs]


def reaches(plan: Plan) -> range:
    """Over how many layers anything is in flight, as a rule and at most: twice as many turns and
    two more are enough, that it reaches neither end from the middle. With two turns alone it is not
    known whether what one of them has besides is that of an end."""
    moved = [each.reach for each in mattering(plan.training.overlap, plan.sizes)]
    if plan.training.offload != NOT_OFFLOADED:
        moved.append(OFFLOAD_REACH)
    least, most = map(max, zip((0, 0), *moved, strict=True))
    return range(least, max(most, 1) + 1)


def _few(kinds_of: _Kinds, layers: Sequence[int], turns: int) -> tuple[Sequence[int], list[Run]]:
    """The layers of a chunk that are lowered, with its runs."""
    kinds = kinds_of(layers)
    found, lowered, at = list[Run](), list[int](), 0
    while at < len(kinds):
        period, count = _longest(kinds, at, turns)
        first, last = turns // 2 * period, (turns - turns // 2) * period
        own = list(layers[at : at + period * count])
        if period * (count - turns) >= WORTH:
            kept = (*own[:first], *own[len(own) - last :])
            found.append(Run(kept, tuple(own[first : len(own) - last]), period))
            own = list(kept)
        lowered += own
        at += period * count
    return (lowered if found else layers), found


def _longest(kinds: Sequence[Kind], at: int, turns: int) -> tuple[int, int]:
    """The stretch from a layer on that comes more than so many times in a row and leaves out most
    layers, if it is worth it: its length, and how many times; (1, 1) where there is none."""
    counts = {period: _times(kinds, at, period) for period in range(1, LONGEST + 1)}
    left_out = {period: period * (count - turns) for period, count in counts.items()}
    period = max(left_out, key=lambda each: (left_out[each], -each))
    return (period, counts[period]) if left_out[period] >= WORTH else (1, 1)


def _times(kinds: Sequence[Kind], at: int, period: int) -> int:
    """How many times in a row the stretch of so many kinds comes that begins there."""
    count = 1
    while kinds[at : at + period] == kinds[at + count * period : at + (count + 1) * period]:
        count += 1
    return count
