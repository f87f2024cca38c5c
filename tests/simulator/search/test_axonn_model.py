"""AxoNN's communication model by hand, on a layer of 8,192 weights in two layers and two bytes."""

from __future__ import annotations

import math

import pytest

from simulator.search.axonn_model import communication_s
from tests.simulator.worlds import TINY
from workload.plan_text import parse_plan

WEIGHTS = 32 * 96 + 32 * 32 + 32 * 64 + 64 * 32
BYTES = 2 * 2  # of each element, in both layers


def seconds(plan: str, batch: int, **rates: float) -> float:
    free = dict.fromkeys(("tp", "y", "z", "dp"), math.inf)
    return communication_s(TINY, parse_plan(f"{plan},mbs=1", batch=batch), free | rates)


def test_weights_are_gathered_twice_and_scattered_once_in_every_micro_batch() -> None:
    """Half of each weight moves each time; recomputation gathers once more."""
    plain, again = (
        seconds(f"z=2,recompute={recompute}", 6, z=1.0) for recompute in ("none", "full")
    )
    assert plain == pytest.approx(3 * (2 + 1) * WEIGHTS / 2 * BYTES)
    assert again == pytest.approx(3 * (3 + 1) * WEIGHTS / 2 * BYTES)


def test_over_x_alone_each_linear_reduces_once_and_over_the_links_of_x() -> None:
    """Column after row: 16 rows of 32, once forward or once backward, twice half of them each."""
    assert seconds("tp=2", 1, tp=1e3, y=1.0) == pytest.approx(4 * 16 * 32 * BYTES / 1e3)


def test_gradients_are_reduced_over_data_once_in_a_step() -> None:
    assert seconds("dp=4", 8, dp=1.0) == pytest.approx(2 * 3 / 4 * WEIGHTS * BYTES)
