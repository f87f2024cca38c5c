"""AxoNN's ladder: each rung with its own batch, and published points over their own rungs."""

from __future__ import annotations

from tests.validation.test_report_figures import points
from validation.report.figures.scaling_figures import weak_scaling
from validation.report.figures.style import drawing
from validation.weak_scaling import BATCH, Rung, _predicted

TINY = {"model": "tiny-1m", "plan": "data=rest"}


def test_a_rung_has_the_batch_that_was_trained_there() -> None:
    own, usual = _predicted("frontier", 32, {**TINY, "batch": 64}), _predicted("frontier", 32, TINY)
    assert (own.plan.batch, usual.plan.batch) == (64, BATCH)
    assert own.plan.recompute == "full"


def test_published_points_stand_over_the_rungs_that_have_one() -> None:
    """Of 8, 16 and 32 devices the last two were published, at 20 and 30 %."""
    hfus = {8: None, 16: 0.2, 32: 0.3}
    rungs = [
        Rung(_predicted("frontier", devices, {**TINY, "batch": 64}), hfu)
        for devices, hfu in hfus.items()
    ]
    with drawing():
        (axes,) = weak_scaling("frontier", rungs).axes
        predicted, published = axes.get_lines()
    ours = [(rung.prediction.devices, 100 * rung.prediction.hfu) for rung in rungs]
    assert points(predicted) == [(devices, round(share, 9)) for devices, share in ours]
    assert points(published) == [(16, 20.0), (32, 30.0)]
