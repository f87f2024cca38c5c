"""Measured steps that anchor the predictions of others like them.

An anchor is a step that was measured and is predicted. Why the two differ (the software's release,
a library's settings, the network's state) mostly holds for similar steps too. So a prediction near
an anchor is multiplied by the anchor's measured over its predicted step, to the power of a weight:
1 for the anchor's own question, 0 where the two lie `FARTHEST` doublings apart. Of several anchors
the `MOST` nearest count, and the share of each halves with every doubling of distance.

Two steps are compared if they train the same kind of model (dense or with experts) with stacks of
one family on the same device. Their distance counts doublings: of the devices, of the active
parameters, of the sequence, and one for another precision; between plans, of each degree and of the
micro-batch, and one for each other field that differs. The weight depends on the question alone,
not on the plan, so that anchors do not change the order of one question's plans.

Source: leave-one-out over published rows, `simgpt validate anchored`. `FARTHEST` was set
beforehand; that three anchors count, each half as much for a doubling more, was chosen among twelve
rules on these very rows, between which the mean error differs by 0.6 points. The range of an
anchored step is that of the residuals of such pairs at the same distance (`anchored.csv`, written
by `python -m tools.anchored_ranges`).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from simulator.stacks.stack import Stack
from simulator.uncertainty.anchored_memory import (
    AnchorPeak,
    MemoryAnchoring,
    WeighedPeak,
    memory_anchoring,
)
from simulator.uncertainty.step_range import StepRange, gpu_names
from topologies.files.reading import shipped_text
from topologies.records import record
from topologies.session import session_cached
from workload.gpt import GPT
from workload.plan import Plan, text_of

FARTHEST = 5.0  # doublings from which on an anchor says nothing
MOST = 3  # anchors that count together
PADDING = 0.02  # doublings of parameters by which plans of one model may differ
DEGREES = {
    "tp": ("tp", "y"),
    "z": ("z",),
    "pp": ("pp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "mbs": ("mbs",),
}
WORDS = (
    "recompute", "schedule", "vpp", "zero", "shard", "sp", "overlap",
    "gradients", "optimizer", "offload", "dispatcher",
)  # fmt: skip
TABLE = "anchored"
DENSE, OF_EXPERTS = "dense", "experts"
SAME_PLAN = " with the same plan"  # behind either, of bins whose pairs differ in the question alone


class Place(NamedTuple):
    """Where a step lies among others: its question (stack, device, kind of model, devices, active
    parameters, sequence, precision) and its plan, as degrees and words by name."""

    stack: str
    stack_family: str
    device: str
    experts: bool
    devices: int
    parameters: int
    sequence: int
    precision: str
    degrees: tuple[int, ...]
    words: tuple[str, ...]

    @property
    def question(self) -> tuple[Any, ...]:
        """All but the plan, and but the parameters, which a stack pads as the plan asks."""
        return self._replace(parameters=0)[:-2]


def place_of(gpt: GPT, plan: Plan, stack: Stack, device: str) -> Place:
    """The place of a plan for a model under a stack, on devices of that name."""
    return Place(
        stack=stack.name,
        stack_family=stack.family or stack.name,
        device=gpu_names(device)[0],
        experts=bool(gpt.moe.experts),
        devices=plan.grid.ranks,
        parameters=gpt.active_parameters,
        sequence=gpt.sequence,
        precision=f"{plan.training.precision} {plan.training.recipe}",
        degrees=tuple(math.prod(plan.value(key) for key in keys) for keys in DEGREES.values()),
        words=tuple(text_of(plan.value(word)) for word in WORDS),
    )


@record
class Distance:
    """How far two places are apart, in doublings: those of the question and those of the plan, and
    what differs, in words."""

    question: float
    plan: float
    differs: tuple[str, ...]

    @property
    def total(self) -> float:
        """Both together."""
        return self.question + self.plan

    @property
    def weight(self) -> float:
        """What an anchor at this distance counts: 1 at none, 0 from `FARTHEST` doublings on."""
        return max(0.0, 1.0 - self.question / FARTHEST)


def incomparable(anchor: Place, other: Place) -> str:
    """Why a measured step says nothing of another; "" where it does."""
    if anchor.device != other.device:
        return f"it ran on {anchor.device}, not on {other.device}"
    if anchor.stack_family != other.stack_family:
        return f"it ran with the stack {anchor.stack}, not with {other.stack}"
    if anchor.experts != other.experts:
        kinds = "a model with experts", "a dense model"
        return f"it trained {kinds[0] if anchor.experts else kinds[1]}"
    return ""


def distance(anchor: Place, other: Place) -> Distance:
    """The distance of two places that are comparable."""
    asked = [*_question(anchor, other)]
    planned = [*_plan(anchor, other)]
    return Distance(
        sum(doublings for doublings, _ in asked),
        sum(doublings for doublings, _ in planned),
        tuple(words for _, words in (*asked, *planned)),
    )


def _question(anchor: Place, other: Place) -> Iterator[tuple[float, str]]:
    """How the questions differ: doublings and words of each difference."""
    for name in ("devices", "parameters", "sequence"):
        mine, its = getattr(anchor, name), getattr(other, name)
        if _doublings(mine, its) > PADDING:
            shown = "active parameters" if name == "parameters" else name
            yield _doublings(mine, its), f"{shown} {mine:,} (here {its:,})"
    if anchor.precision != other.precision:
        yield 1.0, f"precision {_precision(anchor)} (here {_precision(other)})"
    if anchor.stack != other.stack:
        yield 1.0, f"stack {anchor.stack} (here {other.stack})"


def _precision(place: Place) -> str:
    return place.precision.removesuffix(" none")


def _plan(anchor: Place, other: Place) -> Iterator[tuple[float, str]]:
    """How the plans differ."""
    for name, mine, its in zip(DEGREES, anchor.degrees, other.degrees, strict=True):
        if mine != its:
            yield _doublings(mine, its), f"{name}={mine} (here {its})"
    for name, word, here in zip(WORDS, anchor.words, other.words, strict=True):
        if word != here:
            yield 1.0, f"{name}={word} (here {here})"


def _doublings(one: int, other: int) -> float:
    return abs(math.log2(one / other))


@record
class Anchor:
    """A measured step and what is predicted for it; `name` is that of its file, `software` what the
    file says of releases and settings, `peak` its measured memory."""

    name: str
    place: Place
    measured_s: float
    predicted_s: float
    software: str = ""
    peak: AnchorPeak | None = None

    @property
    def residual(self) -> float:
        """The logarithm of measured over predicted."""
        return math.log(self.measured_s / self.predicted_s)


@record
class Used:
    """An anchor that counts for an answer, and how far it is away."""

    anchor: Anchor
    distance: Distance

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {
            "anchor": self.anchor.name,
            "software": self.anchor.software or None,
            "measured_step_s": self.anchor.measured_s,
            "predicted_step_s": self.anchor.predicted_s,
            "doublings": self.distance.total,
            "weight": self.distance.weight,
            "differs": list(self.distance.differs),
        }


class Span(NamedTuple):
    """The ends of an anchored step's range as shares of the step, and from how many pairs of
    published runs of how many sources it comes, in words too."""

    low: float
    high: float
    pairs: int
    sources: int
    words: str


NO_SPAN = Span(1.0, 1.0, 0, 0, "")


@record
class Anchoring:
    """What anchors make of a step: the `factor` that it is multiplied by, the `span` of its range,
    the anchors used, and by name why others were not; and what they make of its memory, where they
    say theirs."""

    factor: float
    span: Span
    used: tuple[Used, ...]
    unused: Mapping[str, str]
    memory: MemoryAnchoring | None = None

    def range_of(self, step_s: float) -> StepRange:
        """The range of an anchored step."""
        span = self.span
        ends = step_s * span.low, step_s * span.high
        return StepRange(*ends, alike=span.pairs, sources=span.sources, words=span.words)

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {
            "factor": self.factor,
            "used": [each.as_dict() for each in self.used],
            "unused": dict(self.unused),
            "memory": None if self.memory is None else self.memory.as_dict(),
        }


def anchoring_of(
    place: Place, anchors: Sequence[Anchor], of: Sequence[Bin] | None = None
) -> Anchoring:
    """What anchors make of a step at a place; `of` are the bins of the range, those that come with
    the package unless others are given."""
    unused = {each.name: incomparable(each.place, place) for each in anchors}
    near = sorted(
        (Used(each, distance(each.place, place)) for each in anchors if not unused[each.name]),
        key=lambda each: (each.distance.total, each.anchor.name),
    )
    far = {
        each.anchor.name: f"{each.distance.question:.1f} doublings are too far"
        for each in near
        if not each.distance.weight
    }
    used = [each for each in near if each.distance.weight][:MOST]
    words = {name: why for name, why in (unused | far).items() if why}
    if not used:
        return Anchoring(1.0, NO_SPAN, (), words)
    bins = anchored_bins() if of is None else of
    span = span_at(bins, used[0].distance, experts=place.experts)
    memory = memory_anchoring([*_peaks(used)])
    return Anchoring(math.exp(correction(used)), span, tuple(used), words, memory)


def _peaks(used: Sequence[Used]) -> Iterator[WeighedPeak]:
    """The peaks of some anchors, weighed as their steps are."""
    for each in used:
        if each.anchor.peak is not None:
            weight = each.distance.weight
            share = weight / 2**each.distance.total
            yield WeighedPeak(each.anchor.name, each.anchor.peak, weight, share)


class QuestionAnchors:
    """Anchors of the plans of one or of several questions, each question's plans alike: what the
    anchors make of the first of its plans that is asked for holds for all."""

    def __init__(self, anchors: Sequence[Anchor]) -> None:
        self._anchors = tuple(anchors)
        self._known: dict[tuple[Any, ...], Anchoring] = {}

    def memory_of(self, place: Place) -> MemoryAnchoring | None:
        """What anchors make of the memory of a question, of which no plan is known yet; None where
        none of them says its own."""
        return anchoring_of(place, self._anchors).memory

    def of(self, place: Place) -> Anchoring | None:
        """What anchors make of a plan; None where no anchors are given."""
        if not self._anchors:
            return None
        question = place.question
        if question not in self._known:
            self._known[question] = anchoring_of(place, self._anchors)
        return self._known[question]


def correction(used: Sequence[Used]) -> float:
    """The logarithm of the factor: the largest weight times the mean of the residuals, to which an
    anchor counts by its weight, and half as much for each doubling that it lies farther away."""
    shares = [each.distance.weight / 2**each.distance.total for each in used]
    mean = sum(w * each.anchor.residual for w, each in zip(shares, used, strict=True)) / sum(shares)
    return mean * max(each.distance.weight for each in used)


class Bin(NamedTuple):
    """Published rows whose nearest anchor lies so many doublings away, of models with experts or
    without, and with any plan or the same: the tenth and ninetieth percentile of the logarithm of
    measured over anchored step, each source weighed alike, how many pairs and how many sources."""

    kind: str
    doublings: float
    low: float
    high: float
    pairs: int
    sources: int


def span_at(bins: Sequence[Bin], far: Distance, *, experts: bool) -> Span:
    """The range of a step whose nearest anchor lies that far away: of pairs with the same plan, if
    that is so here and there are such bins."""
    kind, doublings = OF_EXPERTS if experts else DENSE, far.total
    of_plan = [each for each in bins if each.kind == kind + SAME_PLAN and not far.plan]
    own = of_plan or [each for each in bins if each.kind == kind]
    at = [each.doublings for each in own]
    low = float(np.interp(doublings, at, [each.low for each in own]))
    high = float(np.interp(doublings, at, [each.high for each in own]))
    nearest = min(own, key=lambda each: abs(each.doublings - doublings))
    words = (
        f"{nearest.pairs:,} published runs anchored to others{SAME_PLAN if of_plan else ''} about "
        f"{nearest.doublings:g} doublings away ({nearest.sources} sources)"
    )
    ends = math.exp(min(low, 0.0)), math.exp(max(high, 0.0))
    return Span(*ends, nearest.pairs, nearest.sources, words)


@session_cached(1)
def anchored_bins() -> tuple[Bin, ...]:
    """The bins of the shipped table."""
    lines = shipped_text("simulator", f"uncertainty/{TABLE}.csv").splitlines()
    return tuple(
        Bin(
            row["kind"],
            float(row["doublings"]),
            float(row["low"]),
            float(row["high"]),
            int(row["pairs"]),
            int(row["sources"]),
        )
        for row in csv.DictReader(lines)
    )
