"""Learning rates, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.training.learning_rate import KINDS, Schedule

# Of a run of 6 steps with lr = 1 and a warm-up of 2; cosine and linear fall within 3 steps, wsd
# within its last 2.
BY_HAND = {
    "constant": [0.5, 1, 1, 1, 1, 1],
    "cosine": [0.5, 1, 0.1 + 0.9 * 0.75, 0.1 + 0.9 * 0.25, 0.1, 0.1],
    "linear": [0.5, 1, 0.7, 0.4, 0.1, 0.1],
    "wsd": [0.5, 1, 1, 1, 0.55, 0.1],
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_schedule_is_what_the_words_say(kind: str) -> None:
    decay = {"constant": 0, "wsd": 2}.get(kind, 3)
    least = 0.0 if kind == "constant" else 0.1
    schedule = Schedule(kind=kind, warmup_steps=2, decay_steps=decay, least=least)
    rates = [schedule.rate(step, lr=1.0, steps=6) for step in range(1, 7)]
    assert rates == pytest.approx(BY_HAND[kind], rel=1e-12)


def test_without_a_length_decays_end_with_the_run() -> None:
    wsd = Schedule(kind="wsd")
    assert [wsd.rate(step, lr=1.0, steps=30) for step in (27, 28, 30)] == [1.0, 1 - 1 / 3, 0.0]
    linear = Schedule(kind="linear", warmup_steps=10)
    assert [linear.rate(step, lr=1.0, steps=30) for step in (10, 20, 30)] == [1.0, 0.5, 0.0]


@given(
    kind=st.sampled_from(KINDS[1:]),
    warmup=st.integers(0, 10),
    decay=st.integers(0, 40),
    step=st.integers(1, 60),
)
def test_a_rate_is_never_above_the_highest_and_never_rises_after_the_warm_up(
    kind: str, warmup: int, decay: int, step: int
) -> None:
    schedule = Schedule(kind=kind, warmup_steps=warmup, decay_steps=decay, least=0.25)
    now, then = (schedule.rate(at, lr=1.0, steps=50) for at in (step, step + 1))
    assert 0 < now <= 1
    if step >= warmup:
        assert now >= then >= 0.25
