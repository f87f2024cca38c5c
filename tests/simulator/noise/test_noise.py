"""The factors of noise, and maxima over groups of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.noise.noise import Draw, Noise, lognormal
from simulator.noise.stage_ranks import StageRanks
from simulator.ranks.classes import classes_of
from tests.simulator.worlds import TINY, SmallFabric, lowered
from workload.grid import Grid
from workload.plan_text import parse_plan

EVERY = np.arange(1000)


@pytest.mark.parametrize("deviation", [0.01, 0.3])
def test_factors_have_mean_one_and_the_deviation_that_is_asked_for(deviation: float) -> None:
    factors = lognormal(np.random.default_rng(0), deviation, 2_000_000)
    assert factors.min() > 0
    assert factors.mean() == pytest.approx(1, abs=deviation / 500)
    assert factors.std() == pytest.approx(deviation, rel=0.01)


def test_a_share_of_the_devices_is_slower_and_all_others_are_as_they_were() -> None:
    speeds = Noise(slow_share=0.25, slow_by=0.5).speeds(0, range(20), 1000)
    assert speeds is not None
    assert sorted(set(speeds.ravel())) == [1.0, 1.5]
    assert (speeds == 1.5).mean() == pytest.approx(0.25, abs=0.01)
    assert len({tuple(row) for row in speeds}) == 20  # drawn anew for each sample


def test_devices_that_are_slow_keep_their_spread() -> None:
    spread = Noise(spread=0.1).speeds(3, [5], 1000)
    both = Noise(spread=0.1, slow_share=1.0, slow_by=0.5).speeds(3, [5], 1000)
    assert spread is not None
    assert both is not None
    assert both == pytest.approx(1.5 * spread)


def test_without_noise_there_are_no_factors() -> None:
    for noise in (Noise(), Noise(slow_share=0.5), Noise(slow_by=0.5)):
        assert noise.speeds(0, [0], 8) is None
        assert noise.pool(0, 8) is None


def test_a_samples_factors_are_the_same_whatever_is_drawn_beside_it() -> None:
    noise = Noise(jitter=0.1, spread=0.1)
    pool = noise.pool(7, 1000)
    several, alone = (
        Draw(7, samples, noise.speeds(7, samples, 1000), pool) for samples in ([2, 3, 4], [3])
    )
    many, one = (draw.on(EVERY, 2, 5, 9) for draw in (several, alone))
    for op in range(9):
        first, second = many.jitter(op), one.jitter(op)
        assert first is not None
        assert second is not None
        assert (first[1] == second[0]).all()
    assert several.speeds is not None
    assert alone.speeds is not None
    assert (several.speeds[1] == alone.speeds[0]).all()


def test_ops_stages_parts_and_seeds_draw_their_own_jitter() -> None:
    pool = Noise(jitter=0.1).pool(0, 1000)
    found = []
    for seed, sample, stage, part in [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0),
                                      (0, 0, 0, 1)]:  # fmt: skip
        draw = Draw(seed, [sample], None, pool).on(EVERY, stage, part, 2)
        jitter = [draw.jitter(op) for op in range(2)]
        found += [tuple(each[0]) for each in jitter if each is not None]
    assert len(set(found)) == len(found) == 10


AXES = ("tp", "y", "z", "dp", "shard", "replica")


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    sizes=st.tuples(*[st.integers(1, 3)] * 3),
    data=st.sampled_from([1, 3, 4, 6]),
    order=st.permutations(["tp", "y", "z", "dp", "pp"]),
    axes=st.lists(st.sampled_from(AXES[:4]), min_size=1, max_size=4, unique=True),
    wide=st.sampled_from([1, 40]),
)
def test_maxima_are_those_of_the_grids_groups(
    sizes: tuple[int, int, int], data: int, order: list[str], axes: list[str], wide: int
) -> None:
    x, y, z = sizes
    grid = Grid(x * wide, y, z, data, 2, order="-".join(order))
    assert_maxima(grid, tuple(axes))


@pytest.mark.parametrize("axis", ["shard", "replica", "dp"])
def test_maxima_over_parts_of_data(axis: str) -> None:
    assert_maxima(Grid(tp=2, z=3, dp=12, pp=2, shard=4), (axis,))


def assert_maxima(grid: Grid, axes: tuple[str, ...]) -> None:
    own = np.flatnonzero(grid.stages() == 1)
    ranks = StageRanks(grid, 1, own, [0], np.zeros_like(own))
    clocks = np.random.default_rng(0).random((2, len(own)))
    found = np.empty_like(clocks)
    ranks.spread(ranks.maxima(clocks, axes), axes, found)
    place = np.full(grid.ranks, -1)
    place[own] = np.arange(len(own))
    groups = [group for group in place[grid.groups(*axes)] if (group >= 0).all()]
    assert sum(map(len, groups)) == len(own)
    for group in groups:
        assert (found[:, group] == clocks[:, group].max(axis=1, keepdims=True)).all()


def test_ranks_know_their_classes() -> None:
    plan = parse_plan("tp=2,dp=3,mbs=1", devices=6, batch=3)
    program = lowered(TINY, str(plan))
    fabric = SmallFabric(node_of=(0, 0, 0, 0, 1, 2))
    network = classes_of([program], fabric)
    ranks = StageRanks.of(network, program.plan.grid, 0)
    assert [network.ranks[number] for number in ranks.class_of] != list(range(6))
    assert (ranks.class_of == network.groups.classes).all()
