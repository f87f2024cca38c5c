"""How long a step takes and what it holds, of what the ranks of a run have measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from executor.job import _gather
from executor.launching.launch_env import RankInfo
from executor.train import TrainingRun, TrainingStep


@pytest.mark.parametrize(
    ("seconds", "median"),
    [
        ([9.0, 8.0, 1.0, 4.0, 2.0], 2.0),
        ([9.0, 8.0, 1.0, 4.0, 2.0, 3.0], 2.5),
        ([9.0, 8.0], 8.0),
        ([9.0], 9.0),
    ],
)
def test_a_step_takes_the_median_of_those_after_the_first_two(
    seconds: list[float], median: float
) -> None:
    """The first two warm up; of two steps the second counts, of one that one."""
    steps = [TrainingStep(number, 0.0, each) for number, each in enumerate(seconds, start=1)]
    assert TrainingRun(steps).step_s == median


@pytest.mark.parametrize(
    ("seconds", "spread"),
    [
        ([9.0, 9.0, *map(float, range(11))], (1.0, 9.0)),
        ([9.0, 9.0, 3.0, 2.0], (2.1, 2.9)),
        ([9.0, 8.0], (8.0, 8.0)),
        ([9.0], (9.0, 9.0)),
    ],
)
def test_eight_of_ten_steps_after_the_first_two_lie_in_the_spread(
    seconds: list[float], spread: tuple[float, float]
) -> None:
    """Of 0 to 10 s the 10th percentile is 1 s and the 90th 9 s; of two steps a tenth of the way
    from one to the other."""
    steps = [TrainingStep(number, 0.0, each) for number, each in enumerate(seconds, start=1)]
    assert TrainingRun(steps).spread_s == pytest.approx(spread)


def test_the_share_of_waiting_is_that_of_the_steps_after_the_first_two() -> None:
    """Of 4 s that the last two steps took, 1 s was waiting for a core."""
    times = [(9.0, 9.0), (9.0, 0.0), (1.0, 0.25), (3.0, 0.75)]
    steps = [TrainingStep(n, 0.0, took, waited) for n, (took, waited) in enumerate(times, start=1)]
    assert TrainingRun(steps).waited_share == pytest.approx(0.25)


def test_the_peak_of_a_run_is_that_of_its_fullest_rank(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rank 1 of two, perhaps the last stage, holds 7 bytes, and rank 0 holds 5."""

    def gather(mine: dict[str, Any], everyone: list[Any]) -> None:
        everyone[:] = [mine, mine | {"rank": 1, "peak_bytes": 7}]

    monkeypatch.setattr(dist, "gather_object", gather)
    run = TrainingRun([TrainingStep(1, 2.0, 1.0)], peak_bytes=5)
    assert _gather(run, RankInfo.local(0, 2, tmp_path), 1, [])["peak_bytes"] == 7
