"""How long a step takes, of the times that a run has measured."""

from __future__ import annotations

import pytest

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
