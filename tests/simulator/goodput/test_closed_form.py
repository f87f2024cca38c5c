"""The formulas of a run's expected time, against numbers worked out by hand and one another."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.goodput.closed_form import (
    best_interval_s,
    daly_interval_s,
    erlang_b,
    expected_s,
    waiting_share,
    young_interval_s,
)
from simulator.goodput.job import DAY_S, HOUR_S, Run, SparePool

RUN = Run(
    work_s=100 * DAY_S,
    interval_s=HOUR_S,
    write_s=60.0,
    stall_s=60.0,
    failures_per_s=1 / DAY_S,
    detection_s=0.0,
    restart_s=0.0,
)


def test_the_interval_of_young_is_the_root_of_twice_the_save_and_the_failures_distance() -> None:
    assert young_interval_s(RUN) == pytest.approx(math.sqrt(2 * 60 * DAY_S))  # 3,220 s
    half = 60 / (2 * DAY_S)
    higher = math.sqrt(2 * 60 * DAY_S) * (1 + math.sqrt(half) / 3 + half / 9) - 60
    assert daly_interval_s(RUN) == pytest.approx(higher)


def test_the_best_interval_solves_its_own_equation() -> None:
    """(1 - L t) e^(L (t + b)) = 1, where the derivative of (e^(L (t + b)) - 1)/t is zero."""
    best, rate = best_interval_s(RUN, 1.0), RUN.failures_per_s
    assert (1 - rate * best) * math.exp(rate * (best + 60)) == pytest.approx(1, abs=1e-6)
    assert best == pytest.approx(daly_interval_s(RUN), rel=1e-3)


def test_blocking_saves_give_the_formula_of_bougeret() -> None:
    run = replace(RUN, detection_s=600.0, restart_s=900.0)
    rate = run.failures_per_s
    each = math.exp(rate * 900) * (1 / rate + 600) * math.expm1(rate * (HOUR_S + 60))
    start = math.expm1(rate * 900) * (1 / rate + 600)
    assert expected_s(run) == pytest.approx(2400 * each + start)


def test_spares_are_a_loss_system() -> None:
    assert erlang_b(1, 0.5) == pytest.approx(1 / 3)  # a/(1 + a)
    assert erlang_b(2, 1.0) == pytest.approx(0.2)  # (a^2/2)/(1 + a + a^2/2)
    assert erlang_b(50, 1e-9) == 0
    without = replace(RUN, pool=SparePool(0, DAY_S / 2))
    assert waiting_share(without) == pytest.approx(1 / 3)
    assert expected_s(without) == pytest.approx(expected_s(RUN) * 1.5)


def test_meta_expects_the_same_effective_shares() -> None:
    """Kokolis et al., arXiv 2410.21680: 0.93 for 16,000 GPUs of RSC-1, saves of no time every 5
    minutes and restarts of 5 minutes; the formula there is of the first order."""
    run = replace(
        RUN, interval_s=300.0, write_s=0.0, stall_s=0.0, restart_s=300.0,
        failures_per_s=2000 * 6.5e-3 / DAY_S,
    )  # fmt: skip
    assert run.work_s / expected_s(run) == pytest.approx(0.93, abs=0.005)


@given(
    interval_s=st.floats(120, 20_000),
    write_s=st.floats(1, 100),
    share=st.floats(0, 1),
    per_day=st.floats(0.01, 20),
    restart_s=st.floats(0, 1800),
)
def test_a_run_is_longer_than_its_parts_and_shorter_with_less_trouble(
    interval_s: float, write_s: float, share: float, per_day: float, restart_s: float
) -> None:
    run = replace(
        RUN, interval_s=interval_s, write_s=write_s, stall_s=share * write_s,
        failures_per_s=per_day / DAY_S, restart_s=restart_s,
    )  # fmt: skip
    time_s = expected_s(run)
    assert time_s > run.work_s
    assert expected_s(replace(run, failures_per_s=run.failures_per_s / 2)) < time_s
    assert expected_s(replace(run, pool=SparePool(1, HOUR_S))) >= time_s
    best = best_interval_s(run, 1.0)
    assert expected_s(replace(run, interval_s=best)) <= time_s * (1 + 1e-6)
