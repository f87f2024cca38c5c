"""Layers that are copied from others like them are as if each were written for itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from workload.errors import ModelError, PlanCannotRunError, PlanError
from workload.gpt import GPT, find_model
from workload.held import Held
from workload.lowering import check, lower
from workload.lowering.layer_copies import LayerCopies, Written
from workload.op import Part
from workload.overlaps import EVERY
from workload.passes.stack import StackBehaviour
from workload.plan import Plan
from workload.program import Program
from workload.recomputation.parts import PARTS
from workload.splits.plan_values import CHOICES

LAYERS = 8
MODELS = "gpt-5b", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "nemotron-3-super"
OPTIONS: dict[str, tuple[Any, ...]] = {  # the first of each is drawn most
    **CHOICES,
    "tp": (1, 2),
    "y": (1, 2),
    "z": (1, 2),
    "pp": (1, 2, 4),
    "vpp": (1, 2),
    "cp": (1, 2),
    "ep": (1, 2, 4),
    "dp": (4, 1, 2),
    "mbs": (1, 2),
    "zero": (0, 1, 2, 3),
    "sp": (False, True),
    "reshard": (True, False),
    "context_latents": (False, True),
    "fp8_dispatch": (False, True),
}
RECOMPUTE = "none", "selective", "full", "full:1", "per_op", *PARTS


class EachForItself(LayerCopies):
    """Copies nothing."""

    def declare(self, kind: Hashable, part: Part, declare: Callable[[], None]) -> None:
        declare()

    def written(
        self, key: Hashable, given: Sequence[str], write: Callable[[], tuple[str, Any]]
    ) -> Written[Any]:
        out, saved = write()
        return Written(out, 0, saved)


def drawn_model(chance: random.Random) -> GPT:
    gpt = find_model(chance.choice(MODELS))
    return gpt.changed(
        layers=LAYERS,
        pattern=gpt.pattern[:LAYERS],
        dense_layers=min(gpt.moe.dense_layers, 3),
        sequence=2048,
        balance_loss=chance.choice((0.0, 0.1)) if gpt.moe.experts else 0.0,
        dropout=chance.choice((0.0, 0.0, 0.1)),
    )


def drawn_plan(chance: random.Random) -> Plan:
    row = {
        name: values[0] if chance.random() < 0.6 else chance.choice(values)
        for name, values in OPTIONS.items()
    }
    micro_batches = chance.choice((1, 2, 4, 8))
    batch = row["mbs"] * row["dp"] * row["z"] * micro_batches
    overlap = tuple(name for name in EVERY if chance.random() < 0.5)
    parts = "+".join(sorted(chance.sample(sorted(PARTS), 2)))
    recompute = chance.choice((*RECOMPUTE, parts))
    return Plan.of(batch=batch, overlap=overlap, recompute=recompute, **row)


def drawn_behaviour(chance: random.Random) -> StackBehaviour:
    first, second, third, fourth = (chance.random() < 0.5 for _ in range(4))
    held = Held(sharded_masters=first, frees_gradients=second)
    return StackBehaviour(early_stop=third, once_a_step=fourth, held=held)


def drawn(seed: int) -> Iterator[tuple[GPT, Plan, StackBehaviour]]:
    """Models, plans and behaviour that can be lowered."""
    chance = random.Random(seed)
    while True:
        try:
            gpt, plan = drawn_model(chance), drawn_plan(chance)
            check(gpt, plan)
        except (ModelError, PlanCannotRunError, PlanError):
            continue
        yield gpt, plan, drawn_behaviour(chance)


def lowered(gpt: GPT, plan: Plan, behaviour: StackBehaviour) -> list[Program]:
    return [lower(gpt, plan, stage, behaviour=behaviour) for stage in range(plan.pp)]


def assert_copies_are_as_written(
    question: tuple[GPT, Plan, StackBehaviour], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = lowered(*question)
    with monkeypatch.context() as patch:
        patch.setattr("workload.lowering.chunk.LayerCopies", EachForItself)
        whole = lowered(*question)
    for one, other in zip(copied, whole, strict=True):
        assert one.ops == other.ops
        assert list(one.buffers.items()) == list(other.buffers.items())
        assert (one.layouts, one.states) == (other.layouts, other.states)
        assert list(one.slot_of.items()) == list(other.slot_of.items())


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_copies_are_what_would_have_been_written(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for question in islice(drawn(seed), 60 if seed == 1 else 2000):
        assert_copies_are_as_written(question, monkeypatch)


@pytest.mark.parametrize(
    "keys",
    [
        {"recompute": "full:1"},
        {"zero": 3, "reshard": False},
        {"zero": 3, "reshard": False, "recompute": "full:2"},
        {"zero": 3, "pp": 2},
        {"zero": 3, "pp": 2, "reshard": False},
        {"zero": 3, "pp": 2, "vpp": 2, "recompute": "full"},
        {"zero": 3, "offload": "parameters"},
        {"zero": 3, "offload": "parameters", "recompute": "full:1"},
    ],
    ids=str,
)
@pytest.mark.parametrize("once_a_step", [False, True])
def test_copies_know_which_weights_are_whole_and_what_runs_again(
    keys: dict[str, Any], once_a_step: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpt = replace(find_model("llama-3.1-8b"), layers=LAYERS)
    plan = Plan.of(dp=2, batch=8, mbs=1, **keys)
    assert_copies_are_as_written((gpt, plan, StackBehaviour(once_a_step=once_a_step)), monkeypatch)
