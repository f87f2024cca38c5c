"""Lives as arrays beside lives in SimPy, and beside the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from simulator.goodput.closed_form import best_interval_s, effective_share, expected_s
from simulator.goodput.draws import PARTS, Diary, chances_of, draw_lives, tell
from simulator.goodput.job import DAY_S, HOUR_S, Chain, GoodputError, Run, SparePool
from tests.messages import names
from tests.simulator.goodput.life import live

PER_DAY = 1 / DAY_S


def run(**changes: object) -> Run:
    fields = {
        "work_s": 5 * DAY_S,
        "interval_s": 3000.0,
        "write_s": 300.0,
        "stall_s": 300.0,
        "failures_per_s": 8 * PER_DAY,
        "detection_s": 120.0,
        "restart_s": 300.0,
    }
    return Run(**{**fields, **changes})  # type: ignore[arg-type]


WORLDS = {
    "blocking": run(),
    "async": run(stall_s=20.0, write_s=1200.0),
    "no failures": run(failures_per_s=0.0),
    "two spares": run(pool=SparePool(2, 6 * HOUR_S)),
    "no spares": run(pool=SparePool(0, HOUR_S)),
    "chain": run(chain=Chain(12 * HOUR_S, 2 * HOUR_S), failures_per_s=PER_DAY),
    "chain without failures": run(chain=Chain(12 * HOUR_S, 2 * HOUR_S), failures_per_s=0.0),
    "chain with spares": run(
        chain=Chain(4 * HOUR_S, 2 * HOUR_S, 2),
        failures_per_s=14 * PER_DAY,
        stall_s=20.0,
        write_s=1200.0,
    ),
    "chain with a save in a job": run(
        chain=Chain(12 * HOUR_S, 2 * HOUR_S, 6),
        failures_per_s=4 * PER_DAY,
        interval_s=5 * HOUR_S,
        detection_s=900.0,
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_each_drawn_life_is_the_life_that_simpy_plays_with_the_same_chances(name: str) -> None:
    world, draws = WORLDS[name], 12
    drawn = draw_lives(world, np.full(draws, world.work_s), seed=1)
    for draw in range(draws):
        played, told = (
            of(world, world.work_s, (each[:, draw] for each in chances_of(world, 1, draws)))
            for of in (live, tell)
        )
        assert told.total_s == drawn.total_s[draw]
        assert len(told.failures) == drawn.failures[draw]
        assert_alike(told, played)
        assert played.saves[-1][1] == pytest.approx(world.work_s)


def assert_alike(one: Diary, other: Diary) -> None:
    """Equal to the millisecond."""
    assert one.total_s == pytest.approx(other.total_s, abs=1e-3)
    assert one.failures == pytest.approx(other.failures, abs=1e-3)
    for found, wanted in ((one.saves, other.saves), (one.jobs, other.jobs)):
        assert np.array(found) == pytest.approx(np.array(wanted), abs=1e-3)


def lived(world: Run, work_s: float, chances: Sequence[Sequence[float]]) -> Diary:
    """The life that both tell."""
    found = tell(world, work_s, chances)
    assert_alike(found, live(world, work_s, iter(chances)))
    return found


STATED = 0.002  # of the mean, beside what so many draws are off by


@pytest.mark.parametrize("draws", [400, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WORLDS)
def test_the_closed_form_is_the_mean_of_drawn_lives_within_the_stated_difference(
    name: str, draws: int
) -> None:
    world = replace(WORLDS[name], work_s=60 * DAY_S)
    drawn = draw_lives(world, np.full(draws, world.work_s), seed=2)
    mean = float(drawn.total_s.mean())
    off = 3 * float(drawn.total_s.std()) / draws**0.5
    assert expected_s(world) == pytest.approx(mean, abs=STATED * mean + off)


def test_chains_are_shortest_with_the_interval_that_the_formulas_hold_for_the_best() -> None:
    """With the same chances, so that the intervals alone differ."""
    world = replace(WORLDS["chain with spares"], work_s=60 * DAY_S, write_s=60.0)
    best_s = best_interval_s(world, 1.0)
    times = [
        draw_lives(replace(world, interval_s=each), np.full(400, world.work_s), 2).total_s.mean()
        for each in (0.6 * best_s, best_s, 1.7 * best_s)
    ]
    assert times[1] < min(times[0], times[2])


def test_a_run_without_failures_is_its_steps_its_saves_and_one_restart() -> None:
    world = run(failures_per_s=0.0, work_s=9000.0)
    diary = lived(world, 9000.0, [[1.0]] * 9)
    assert diary.total_s == 300 + 9000 + 3 * 300
    assert diary.saves == [(3600, 3000), (6900, 6000), (10200, 9000)]
    assert expected_s(world) == diary.total_s


def test_a_failure_costs_what_is_not_durable_detection_and_a_restart() -> None:
    world = run(failures_per_s=1.0, work_s=6000.0)
    diary = lived(world, 6000.0, [[300 + 3300 + 100.0], [1e9]])
    assert diary.failures == [3700]  # 100 s after the first save, which is durable
    assert diary.total_s == 3700 + 120 + 300 + 3000 + 300


def test_an_asynchronous_save_that_is_not_yet_written_is_lost() -> None:
    world = run(failures_per_s=1.0, work_s=6000.0, stall_s=20.0, write_s=1200.0)
    lost, kept = 300 + 3000 + 1100.0, 300 + 3000 + 1201.0
    for fails_s, rest_s in ((lost, 6000 + 20), (kept, 3000)):
        diary = lived(world, 6000.0, [[fails_s], [1e9]])
        assert diary.total_s == pytest.approx(fails_s + 120 + 300 + rest_s + 1200)


def test_with_the_last_spare_broken_the_run_waits_for_a_repair() -> None:
    world = run(failures_per_s=1.0, work_s=3000.0, pool=SparePool(1, 1.0))
    once = [[100.0, 50_000.0], [100.0, 9000.0], [1e9, 1.0]]
    diary = lived(world, 3000.0, once)
    second_repair_s = 100 + 120 + 100 + 120 + 9000
    assert diary.total_s == second_repair_s + 300 + 3000 + 300


def test_a_job_saves_before_its_time_limit_and_the_next_waits_in_the_queue() -> None:
    world = run(failures_per_s=0.0, work_s=6000.0, chain=Chain(4000.0, 1000.0))
    diary = lived(world, 6000.0, [[1.0, 2.0]] * 3)
    assert diary.jobs[0] == (0, 4000)
    assert diary.saves[1] == (4000, 3100)  # 300 s restart, 3,000 + 100 s trained, two saves
    assert diary.jobs[1][0] == 4000 + 2 * 1000
    assert diary.total_s == 6000 + 300 + 2900 + 300


def test_the_parts_of_the_time_add_up() -> None:
    for world in WORLDS.values():
        drawn = draw_lives(world, np.full(50, world.work_s), seed=3)
        lost = drawn.total_s - world.work_s - sum(drawn.parts_s[name] for name in PARTS)
        assert lost.min() > -1e-3
        assert sum(drawn.shares.values()) == pytest.approx(1)
        assert drawn.shares["training"] == pytest.approx(
            drawn.work_s.sum() / drawn.total_s.sum(), abs=1e-12
        )


def test_what_makes_no_progress_is_refused() -> None:
    with pytest.raises(GoodputError, check=names("1%", "0.1 hours")):
        draw_lives(run(failures_per_s=400 * PER_DAY), np.full(5, 1e5), seed=0)
    with pytest.raises(GoodputError, check=names("3.6e+03 s")):
        run(write_s=3600.0, stall_s=1.0)
    with pytest.raises(GoodputError, check=names("500 s", "600 s")):
        run(chain=Chain(500.0, 0.0))


def test_a_run_of_one_step_is_no_run_without_progress() -> None:
    drawn = draw_lives(run(failures_per_s=0.0), np.array([1.0]), seed=0)
    assert drawn.total_s[0] == 300 + 1 + 300


@pytest.mark.slow
def test_ten_thousand_lives_of_ninety_days_are_as_long_as_expected() -> None:
    world = run(work_s=81 * DAY_S, interval_s=600.0, write_s=30.0, stall_s=30.0)
    drawn = draw_lives(world, np.full(10_000, world.work_s), seed=0)
    assert drawn.total_s.mean() / DAY_S == pytest.approx(90, rel=0.05)
    assert effective_share(world) == pytest.approx(drawn.shares["training"], rel=0.002)
