"""Plans near the one that is asked for: the best of its neighbours, and the nearest that fits.

Each is predicted by the path of `simgpt predict`; those that cannot run are left out. A neighbour
differs in one key: a size doubled or halved, or another value of a switch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from simgpt import tables
from simgpt.advice import does_not_fit
from simgpt.commands.serve.asked import step_asked, with_plan
from simgpt.question import Question
from simulator.predict import Prediction
from topologies.errors import SimgptError
from topologies.records import record
from workload.plan import Plan, text_of
from workload.recomputation.parts import RECOMPUTES

Change = dict[str, Any]

SIZES = ("tp", "y", "z", "pp", "vpp", "mbs")
ZEROS = (0, 1, 3)
BEST = 5
LIMIT_S = 30.0  # of looking for plans; what was found until then is the answer


@record
class Choice:
    """A changed plan that runs."""

    question: Question
    change: Change
    prediction: Prediction

    def as_dict(self, before: Prediction) -> dict[str, Any]:
        """The choice for the page: the plan's keys to set, and by how much it is better."""
        after = self.prediction
        gain = after.tokens_per_s / before.tokens_per_s - 1
        return {
            "change": {key: text_of(value) for key, value in self.change.items()},
            "words": _words(before.plan, self.change),
            "step_s": after.step_s,
            "step": tables.seconds(after.step_s),
            "tokens_per_s": after.tokens_per_s,
            "gain": tables.percent(gain, sign=True),
            "memory": tables.gib(after.memory.peak_bytes),
            "command": self.question.command,
        }


@record
class Found:
    """What was found near a plan, the best first, and a sentence on the whole."""

    before: Prediction
    choices: tuple[Choice, ...]
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        """The choices and the sentence for the page."""
        return {
            "choices": [choice.as_dict(self.before) for choice in self.choices],
            "sentence": self.sentence,
        }


def best_neighbours(question: Question) -> Found:
    """The neighbours that fit, or are no less likely to than the plan, and have the most tokens per
    second, at most `BEST` of them."""
    question, before = _asked(question)
    tried, cut = _tried(question, neighbours(before.plan))
    fits = [choice for choice in tried if choice.prediction.memory.is_as_sure_as(before.memory)]
    fits.sort(key=lambda choice: -choice.prediction.tokens_per_s)
    better = sum(each.prediction.tokens_per_s > before.tokens_per_s for each in fits)
    said = f"of {tables.several(len(tried), 'neighbour')} that can run, {len(fits)} fit"
    if before.memory.fits:
        said += f", {better or 'none'} of them faster than this plan"
    return Found(before, tuple(fits[:BEST]), said + cut)


def fitting(question: Question) -> Found:
    """The first of `remedies` with which the plan fits."""
    question, before = _asked(question)
    if before.memory.is_sure:
        return Found(before, (), "the plan fits as it is")
    end, tried = time.monotonic() + LIMIT_S, 0
    for change in remedies(before.plan):
        if time.monotonic() > end:
            break
        if (choice := _choice(question, change)) is None:
            continue
        tried += 1
        if choice.prediction.memory.is_sure:
            return Found(before, (choice,), f"it fits with {_words(before.plan, change)}")
    plans = tables.several(tried, "changed plan")
    return Found(before, (), f"{does_not_fit(before)}, and neither does any of {plans}")


def neighbours(plan: Plan) -> Iterator[Change]:
    """The changes of one key that lead to a neighbour."""
    for key in SIZES:
        size = plan.value(key)
        if key != "vpp" or plan.pp > 1:
            yield {key: 2 * size}
        if size % 2 == 0:
            yield {key: size // 2}
    yield from ({"zero": zero} for zero in ZEROS if zero != plan.zero)
    yield from ({"recompute": kind} for kind in RECOMPUTES if kind != plan.training.recompute)
    if plan.tp > 1:
        yield {"sp": not plan.sp}


def remedies(plan: Plan) -> Iterator[Change]:
    """What lessens memory, from the mildest change to the strongest: sequence parallelism,
    recomputation, sharding over data, both, smaller micro-batches with them, and then more pipeline
    stages or tensor parallelism too."""
    if plan.tp > 1 and plan.y == 1 and not plan.sp:
        yield {"sp": True}
    level = (
        RECOMPUTES.index(plan.training.recompute) if plan.training.recompute in RECOMPUTES else 1
    )
    recomputes: list[Change] = [{"recompute": kind} for kind in RECOMPUTES[level + 1 :]]
    zeros: list[Change] = [{"zero": zero} for zero in ZEROS if zero > plan.zero]
    yield from recomputes
    yield from zeros
    yield from (once | zero for zero in zeros for once in recomputes)
    mild = [{}, *recomputes[-1:], *(once | zero for zero in zeros for once in recomputes[-1:])]
    if plan.mbs > 1:
        yield from (change | {"mbs": 1} for change in mild)
        mild = [change | {"mbs": 1} for change in mild]
    for factor in (2, 4, 8, 16):
        for key in ("pp", "tp"):
            yield from (change | {key: factor * plan.value(key)} for change in mild)


def _asked(question: Question) -> tuple[Question, Prediction]:
    """The question with its stack named, since another plan would choose another, and what is
    predicted for it."""
    step = step_asked(question)
    named = question if question.stack else question.changed(stack=step.job.stack.name)
    return named, step.predicted()


def _tried(question: Question, changes: Iterator[Change]) -> tuple[list[Choice], str]:
    """The changed plans that can run, and what to say if time was up before all were tried."""
    end = time.monotonic() + LIMIT_S
    found: list[Choice] = []
    for change in changes:
        if time.monotonic() > end:
            return found, f"; after {LIMIT_S:.0f} s the others were not tried"
        if (choice := _choice(question, change)) is not None:
            found.append(choice)
    return found, ""


def _choice(question: Question, change: Change) -> Choice | None:
    changed = with_plan(question, change)
    try:
        return Choice(changed, change, step_asked(changed).predicted())
    except SimgptError:
        return None


def _words(plan: Plan, change: Change) -> str:
    """A change as a person reads it: `pp=8 (was 4)`."""
    return ", ".join(
        f"{key}={text_of(value)} (was {text_of(plan.value(key))})" for key, value in change.items()
    )
