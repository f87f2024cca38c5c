"""What is named of a plan that does not fit, beside all changes of one key, each predicted."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from simgpt.advice import what_fits
from simulator.predict import Prediction, predict
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from simulator.uncertainty.fitting import EXACT
from tests.simgpt.offers import changes_in
from topologies.errors import SimgptError
from topologies.machine_files import load_machine
from topologies.placement import with_room
from workload.gpt import GPT, find_model
from workload.plan import Plan

DEVICES, BATCH = 8, 16
MACHINE = with_room(load_machine("1x8xH100"), DEVICES)
MODELS = {
    "llama-3.1-8b": {"layers": 4, "sequence": 2048},
    "mixtral-8x7b": {"layers": 2, "sequence": 2048},
    "gpt-5b": {"layers": 4},
}
STACKS = ("megatron-core", "nemo", "torchtitan", "simgpt", "megatron-lm-2022")
VALUES: dict[str, tuple[Any, ...]] = {  # of each key, those that are tried
    "tp": (1, 2, 4, 8),
    "pp": (1, 2, 4),
    "vpp": (1, 2),
    "mbs": (1, 2, 4),
    "zero": (0, 1, 2, 3),
    "ep": (1, 2, 4, 8),
    "sp": ("true",),
    "gradients": ("bf16",),
    "attention": ("flash",),
    "recompute": ("selective", "layernorm", "mlp", "full", *(f"full:{n}" for n in range(1, 5))),
}
QUICK = (2, 45)
NEAR = 1.05  # how many times as long as the fastest change one that is named may take


class Question:
    """A plan in a user's words, with devices that have as much room as is said."""

    def __init__(self, gpt: GPT, stack: str, words: Mapping[str, Any]) -> None:
        self.gpt, self.stack, self.words = gpt, load_stack(stack), dict(words)
        self.room = 2**60

    def predicted(self, words: Mapping[str, Any]) -> Prediction:
        job = job_of(self.gpt, words, self.stack, devices=DEVICES, batch=BATCH)
        return self.with_room(predict(job.gpt, job.plan, MACHINE, stack=job.stack))

    def changed(self, plan: Plan) -> Prediction:
        gpt = self.stack.model(self.gpt, plan.tp)
        return self.with_room(predict(gpt, plan, MACHINE, stack=self.stack))

    def with_room(self, prediction: Prediction) -> Prediction:
        memory = replace(prediction.memory, capacity_bytes=self.room, errors=EXACT)
        return replace(prediction, memory=memory)

    def enough(self) -> Iterator[tuple[float, str]]:
        """All changes of one word with which the plan fits, by the step that they take."""
        for key, values in VALUES.items():
            for value in values:
                try:
                    found = self.predicted({**self.words, key: value})
                except SimgptError:
                    continue
                if found.memory.fits:
                    yield found.step_s, f"{key}={value}"


def drawn(seed: int) -> Question:
    """A plan that runs, on devices that are 2 to 60 % too small for it."""
    draw = random.Random(seed)
    while True:
        model = draw.choice(sorted(MODELS))
        gpt = find_model(model).changed(**MODELS[model])
        words = {key: draw.choice(VALUES[key]) for key in ("tp", "pp", "mbs", "zero")}
        words |= {"vpp": 2} if words["pp"] > 1 and draw.random() < 0.5 else {}
        words |= {"ep": draw.choice((1, 2))} if gpt.moe.experts else {}
        words |= {"sp": "false"} if words["tp"] > 1 and draw.random() < 0.5 else {}
        question = Question(gpt, draw.choice(STACKS), {**words, "dp": "rest"})
        try:
            peak = question.predicted(question.words).memory.peak_bytes
        except SimgptError:
            continue
        question.room = int(peak * draw.uniform(0.4, 0.98))
        return question


@pytest.mark.parametrize(
    "seed",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in range(120)],
)
def test_the_fastest_change_of_one_key_is_named_or_one_nearly_as_fast(seed: int) -> None:
    question = drawn(seed)
    said = what_fits(question.predicted(question.words), MACHINE, question.changed)
    fastest = min(question.enough(), default=None)
    named = changes_in(said)
    if fastest is None:
        assert not named or (len(named) == 1 and "," in named[0]) or _is_beyond(named[0])
        return
    first = named[0] if named else ""
    assert first, (question.words, said, fastest)
    plan = {**question.words, **dict(each.split("=") for each in first.split(","))}
    found = question.predicted(plan)
    assert found.memory.fits
    assert found.step_s <= NEAR * fastest[0], (question.words, said, fastest)


def _is_beyond(change: str) -> bool:
    """Whether a change is none of those that are tried here."""
    key, _, value = change.split(",", maxsplit=1)[0].partition("=")
    return key in ("y", "z", "offload", "schedule", "shard", "etp") or "+" in value
