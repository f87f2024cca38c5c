"""Pipelines on every rank: what their slots leave to each other, and which device is slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from simulator.noise.all_ranks import all_ranks
from simulator.noise.noise import Draw, Noise
from simulator.noise.pipeline import Pipeline
from simulator.noise.variability import SLOWER_BY, drawn
from simulator.pipeline import simulate_pipeline
from tests.simulator.worlds import TINY, SmallCosts, SmallFabric, plan_of

GPT = replace(TINY, layers=8, tied=False)


def assert_predicted(
    text: str,
    micro_batches: int,
    bytes_per_s: float,
    *,
    nodes: Sequence[int] = (),
    vpp: int = 1,
) -> Pipeline:
    plan = replace(plan_of(text, micro_batches), vpp=vpp)
    fabric = SmallFabric(bytes_per_s=bytes_per_s, node_of=tuple(nodes), launch_s=1e-3)
    predicted = simulate_pipeline(GPT, plan, SmallCosts(), fabric)
    step = all_ranks(GPT, plan, SmallCosts(), fabric)
    assert step.play(Draw(0, (0,))).ticks.tolist() == [sum(predicted.parts_ticks.values())]
    assert isinstance(step, Pipeline)
    return step


def test_ranks_of_a_faster_class_have_slack_behind_their_slots() -> None:
    """Of the first stage's two groups over x one lies on one node, and of the second's the other:
    each stage has its slots last as long as on two nodes."""
    step = assert_predicted("pp=2,tp=2,dp=2", 4, 1e9, nodes=(0, 0, 1, 2, 3, 4, 5, 5))
    assert all(slot.slack.any() for stage in step.stages for slot in stage.slots)


def test_the_end_of_a_stage_waits_until_its_last_message_is_sent() -> None:
    """The last stage has most layers, and so sums gradients for longer than the first one takes for
    its last slot, which the message that is waited for makes later."""
    assert_predicted("pp=2,dp=2,overlap=none,stage_layers=1+7", 2, 1e6)


@pytest.mark.parametrize("bytes_per_s", [1e5, 1e6])
def test_the_end_waits_for_the_gradients_of_earlier_slots(bytes_per_s: float) -> None:
    step = assert_predicted("pp=2,dp=2,overlap=dp", 2, bytes_per_s, vpp=2)
    assert all(stage.tails and stage.ending.floors for stage in step.stages)


def test_the_one_slow_device_is_that_of_those_tried_with_which_the_step_is_longest() -> None:
    plan = plan_of("pp=2,dp=2,stage_layers=2+6", 4)
    step = all_ranks(GPT, plan, SmallCosts(), SmallFabric(bytes_per_s=1e9))
    found = drawn(step, plan, Noise(), samples=2, seed=0)
    slow = [
        step.play(Draw(0, (0,), 1 + SLOWER_BY * (np.arange(4) == rank)[None, :])).ticks[0]
        for rank in range(4)
    ]
    assert found.slow_device.step_s == pytest.approx(max(slow) / 1e12)
    assert found.slow_device.rank in np.flatnonzero(np.array(slow) == max(slow))
    every = step.play(Draw(0, (0,), np.full((1, 4), 1 + SLOWER_BY))).ticks[0]
    assert found.slow_device.step_s < every / 1e12
