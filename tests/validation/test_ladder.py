"""AxoNN's ladder: published points over their own rungs."""

from __future__ import annotations

from simulator.predict import predict
from tests.validation.test_report_figures import points
from topologies.machine_files import load_machine
from validation.report.figures.scaling_figures import weak_scaling
from validation.report.figures.style import drawing
from validation.weak_scaling import Rung, ladders
from workload.gpt import find_model
from workload.plan_text import parse_plan


def test_rungs_stand_in_the_order_of_their_devices() -> None:
    assert ladders()["perlmutter"] == [f"perlmutter-{n}" for n in (512, 1024, 2048, 4096)]
    assert [len(rungs) for rungs in ladders().values()] == [7, 4, 4]


def test_published_points_stand_over_the_rungs_that_have_one() -> None:
    """Of 8, 16 and 32 devices the last two were published, at 20 and 30 %."""
    hfus = {8: None, 16: 0.2, 32: 0.3}
    gpt, machine = find_model("tiny-1m"), load_machine("frontier")
    rungs = [
        Rung(predict(gpt, parse_plan("dp=rest", devices=devices, batch=64), machine), hfu)
        for devices, hfu in hfus.items()
    ]
    with drawing():
        (axes,) = weak_scaling("frontier", rungs).axes
        predicted, published = axes.get_lines()
    ours = [(rung.prediction.devices, 100 * rung.prediction.hfu) for rung in rungs]
    assert points(predicted) == [(devices, round(share, 9)) for devices, share in ours]
    assert points(published) == [(16, 20.0), (32, 30.0)]
