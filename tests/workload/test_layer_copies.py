"""Layers that are copied from others like them are as if each were written for itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from tests.simulator.drawn_steps import drawn_steps
from workload.gpt import GPT
from workload.held.habits import Held
from workload.lowering import lower
from workload.lowering.layer_copies import LayerCopies, Written
from workload.op import Part
from workload.passes.stack import Habits
from workload.plan import Plan
from workload.program import Program


class EachForItself(LayerCopies):
    """Copies nothing."""

    def declare(self, kind: Hashable, part: Part, declare: Callable[[], None]) -> None:
        declare()

    def written(
        self, key: Hashable, given: Sequence[str], write: Callable[[], tuple[str, Any]]
    ) -> Written[Any]:
        out, saved = write()
        return Written(out, 0, saved)


def lowered(gpt: GPT, plan: Plan, habits: Habits) -> list[Program]:
    return [lower(gpt, plan, stage, habits=habits) for stage in range(plan.pp)]


@pytest.mark.parametrize("seed", [5, pytest.param(6, marks=pytest.mark.slow)])
def test_copies_are_what_would_have_been_written(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    for step in islice(drawn_steps(seed), 40 if seed == 5 else 1500):
        flags = chance.choices((False, True), k=4)
        held = Held(sharded_masters=flags[0], frees_gradients=flags[1])
        habits = Habits(early_stop=flags[2], once_a_step=flags[3], held=held)
        gpt = step.gpt
        if gpt.experts and not gpt.pattern and gpt.layers > 1 and chance.random() < 0.5:
            gpt = replace(gpt, balance_loss=0.1, dense_layers=1)
        if step.plan.pp == 1 and not gpt.pattern:
            gpt = replace(gpt, layers=min(gpt.layers, 8))
        copied = lowered(gpt, step.plan, habits)
        with monkeypatch.context() as patch:
            patch.setattr("workload.lowering.chunk.LayerCopies", EachForItself)
            whole = lowered(gpt, step.plan, habits)
        for one, other in zip(copied, whole, strict=True):
            assert one.ops == other.ops
            assert list(one.buffers.items()) == list(other.buffers.items())
            assert (one.layouts, one.states) == (other.layouts, other.states)
            assert list(one.slot_of.items()) == list(other.slot_of.items())
