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
