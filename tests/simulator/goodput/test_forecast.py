"""Forecasts: the range of their steps, and the life that a report draws."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.goodput.checkpoint import Checkpoint, checkpoint_of
from simulator.goodput.forecast import StepSpread, forecast
from simulator.goodput.job import DAY_S, HOUR_S, Run
from simulator.goodput.saves import save_times
from topologies.hardware.reliability import Reliability, Storage
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.plan_text import parse_plan

RUN = Run(
    work_s=10 * DAY_S,
    interval_s=HOUR_S,
    write_s=60.0,
    stall_s=60.0,
    failures_per_s=0.5 / DAY_S,
    detection_s=600.0,
    restart_s=600.0,
)


@pytest.mark.parametrize(("low", "high", "middle"), [(0.9, 1.5, 1.0), (1.1, 1.331, 1.21)])
def test_eight_of_ten_mean_steps_are_in_the_range(low: float, high: float, middle: float) -> None:
    drawn = StepSpread(low, high).draws(np.random.default_rng(0), 40_000)
    found = np.percentile(drawn, [10, 50, 90])
    assert found == pytest.approx([low, middle, high], rel=0.01)


def test_without_failures_a_forecast_has_the_range_of_its_steps() -> None:
    quiet = Run(**{f: getattr(RUN, f) for f in Run.__dataclass_fields__} | {"failures_per_s": 0.0})
    found = forecast(quiet, [StepSpread(0.9, 1.5)], least_interval_s=1.0, draws=4000, seed=0)
    assert found.percentile_s(90) / found.percentile_s(50) == pytest.approx(1.5, rel=0.03)
    assert found.percentile_s(10) / found.percentile_s(50) == pytest.approx(0.9, rel=0.03)


def test_the_life_that_is_drawn_is_the_one_that_ends_in_the_middle() -> None:
    found = forecast(RUN, [StepSpread(0.9, 1.2)], least_interval_s=1.0, draws=101, seed=3)
    diary = found.diary()
    assert diary is not None
    assert diary.total_s == pytest.approx(found.percentile_s(50))


def test_the_same_seed_draws_the_same_lives() -> None:
    one, same, other = (
        forecast(RUN, [StepSpread(0.9, 1.2)], least_interval_s=1.0, draws=50, seed=seed)
        for seed in (1, 1, 2)
    )
    assert (one.lives.total_s == same.lives.total_s).all()
    assert (one.lives.total_s != other.lives.total_s).any()


def test_a_save_is_as_slow_as_the_file_system_or_the_nodes() -> None:
    machine = load_machine("frontier")  # 8 devices and 4 NICs of 25 GB/s a node, 36 GB/s to a host
    of = Checkpoint(parameter_bytes=2 * 10**12, state_bytes=12 * 10**12, held_bytes=28 * 10**12)
    wide = Storage(4e12, 7e12)
    found = save_times(of, machine, wide, 512, async_save=False)  # 64 nodes: 6.4 TB/s
    assert (found.write_s, found.stall_s) == (3.5, 3.5)
    whole = found.limit
    assert found.read_s == pytest.approx(28 / 6.4)
    found = save_times(of, machine, wide, 128, async_save=True)
    assert found.write_s == pytest.approx(14 / 1.6)
    assert found.limit != whole
    assert found.stall_s == pytest.approx(14e12 / 128 / 36e9)


def test_one_job_gets_its_share_of_the_file_system_and_all_nodes_get_all_of_it() -> None:
    machine = load_machine("frontier")  # 9,856 nodes of 8 devices
    of = Checkpoint(parameter_bytes=2 * 10**12, state_bytes=12 * 10**12, held_bytes=14 * 10**12)
    shared = Storage(4e12, 4e12, job_share=0.25)
    job = save_times(of, machine, shared, 512, async_save=False)
    assert job.write_s == job.read_s == 14.0  # of 1 TB/s
    half = save_times(of, machine, shared, machine.devices // 2, async_save=False)
    assert half.write_s == pytest.approx(7.0)  # of 2 TB/s, for half of the nodes
    assert "25 %" in job.limit
    storage = machine.storage
    assert storage is not None
    assert storage.job_share < 1
    assert storage.node_bytes_per_s


def test_a_rate_of_failures_is_for_a_thousand_days_of_a_node() -> None:
    assert Reliability(6.5).failures_per_s == pytest.approx(6.5 / 1000 / DAY_S)


@pytest.mark.parametrize("plan", ["dp=8", "dp=4,pp=2", "tp=2,z=4", "dp=8,zero=3"])
@pytest.mark.parametrize(("precision", "each"), [("bf16", 14), ("fp32", 12)])
def test_a_checkpoint_has_each_value_once_under_every_plan(
    plan: str, precision: str, each: int
) -> None:
    gpt = find_model("tiny-2m")
    found = checkpoint_of(gpt, parse_plan(f"{plan},precision={precision}", devices=8, batch=8))
    assert found.total_bytes == pytest.approx(each * gpt.parameters, rel=0.03)
