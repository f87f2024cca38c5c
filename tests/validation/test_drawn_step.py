"""What a page draws of one step: the bytes over its links, its memory, its timeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simgpt.asked_again import ASKING
from simulator.predict import predict
from tests.messages import names
from tests.validation.test_report import answer
from topologies.collectives.link_loads import RingTraffic, link_loads
from topologies.machine_files import load_machine
from topologies.placement import contiguous, scheduler
from validation.report.answer_files import ReportError
from validation.report.figures.drawn_step import Scene, staged
from validation.report.figures.link_figures import _busy_links, _node
from validation.report.figures.step_figures import MOST_ROWS, POINTS, _thinned, tornado
from validation.report.figures.style import canvas, drawing
from validation.report.figures.timeline_data import timeline_data
from validation.report.read_prediction import prediction_of
from workload.gpt import find_model
from workload.plan_text import parse_plan

TINY = find_model("tiny-1m")


def scene(plan: str, devices: int) -> Scene:
    return staged(prediction_of(answer(plan, devices), "tp"), ASKING.step_of)


def sent(drawn: Scene) -> dict[str, float]:
    return {each.axes: each.hop_bytes for each in drawn.traffic}


def test_a_member_sends_on_three_quarters_of_a_gather_and_twice_that_of_an_all_reduce() -> None:
    """In groups of four, of all that the prediction counts."""
    for plan, axes in (("dp=4", "dp"), ("z=4", "z")):
        drawn = scene(plan, 4)
        ops = [op for op in drawn.step.programs[0].ops if "+".join(op.axes) == axes]
        sums = sum(op.nbytes for op in ops if op.kind == "all_reduce")
        gathers = sum(op.nbytes for op in ops if op.kind != "all_reduce")
        assert sums > 0
        assert (gathers > 0) == (axes == "z")
        assert sent(drawn)[axes] == pytest.approx(3 / 4 * gathers + 2 * 3 / 4 * sums)


def test_a_message_between_stages_is_sent_once() -> None:
    """Two stages: of each micro-batch activations of bf16 there and gradients back, which is one of
    them for each stage."""
    drawn = scene("pp=2,mbs=1", 2)
    activations = TINY.sequence * TINY.hidden * 2
    messages = drawn.shown.micro_batches * activations
    assert sent(drawn)["pp"] == pytest.approx(messages, rel=1e-4)  # beside them sums of norms


def test_a_step_that_is_faster_than_the_answers_is_not_drawn_either() -> None:
    record = answer()
    for factor in (0.99, 1.01):
        changed = prediction_of({**record, "step_s": factor * record["step_s"]}, "tp")
        with pytest.raises(ReportError, check=names("tp", "0.00863634 s")):
            staged(changed, ASKING.step_of)


def test_memory_is_drawn_of_the_stage_that_needs_most() -> None:
    """Of two stages with one micro-batch it is the last one, where many words have logits."""
    gpt, machine = replace(TINY, vocab=8192), load_machine("frontier")
    plan = parse_plan("pp=2,recompute=full", batch=32)
    placed = scheduler(machine, 2)
    record = predict(gpt, plan, machine, placement=placed).as_dict()
    drawn = staged(prediction_of({**record, "fields": {"vocab": 8192}}, "tp"), ASKING.step_of)
    peaks = [program.peak.total_bytes for program in drawn.step.programs]
    curve = drawn.memory
    assert max(map(sum, zip(*curve.parts.values(), strict=True))) == max(peaks)
    assert peaks[0] < peaks[1]


def test_the_peak_of_a_long_step_is_drawn() -> None:
    """Of 5,000 points one, in the midst of others, stands out."""
    at_s, rows = np.arange(5000.0), np.ones((2, 5000))
    rows[1, 1243] = 9.0
    times, kept = _thinned(at_s, rows)
    assert len(times) == kept.shape[1] == POINTS
    assert kept.sum(axis=0).max() == 10.0
    assert times[kept.sum(axis=0).argmax()] == 1243.0


def test_the_numbers_that_matter_most_are_drawn_whether_more_of_them_helps_or_not() -> None:
    rows = [{"key": f"k{n}", "unit": "s", "value": 1.0, "elasticity": 0.01} for n in range(20)]
    rows += [{"key": "nics", "unit": "bytes/s", "value": 1.0, "elasticity": -0.9}]
    with drawing():
        (axes,) = tornado(rows).axes
        shown = [tick.get_text() for tick in axes.get_yticklabels()]
        assert len(shown) == MOST_ROWS
        assert shown[0].startswith("nics")
        assert axes.patches[0].get_width() == -0.9  # type: ignore[attr-defined]


def test_four_links_between_two_devices_are_a_fourth_as_busy_as_one() -> None:
    """Frontier's GCDs 0 and 1 have four links of 50 GB/s: 8 bytes in a second."""
    machine = load_machine("frontier")
    pair = RingTraffic("tp", np.array([[0, 1]], dtype=np.int64), 8.0)
    busy = _busy_links(machine, link_loads(machine, contiguous(machine, 8), [pair]), 1.0)
    assert busy[0, 1] == pytest.approx(8.0 / 200e9)
    assert sum(busy.values()) == busy[0, 1]


@pytest.mark.parametrize(("name", "devices"), [("host", 1), ("1x2xH100", 2)])
def test_a_node_whose_devices_stand_on_a_line_is_drawn_with_a_height(
    name: str, devices: int
) -> None:
    """The circle of devices has a radius of 1."""
    machine = load_machine(name)
    loads = link_loads(machine, contiguous(machine, devices), [])
    with drawing():
        figure, (axes,) = canvas(4.0, 4.0)
        _node(axes, machine, loads, 1.0)
        figure.canvas.draw()
    low, high = axes.get_ylim()
    assert low <= -1.0
    assert high >= 1.0


def test_the_interactive_timeline_has_starts_and_durations() -> None:
    drawn = scene("z=2,dp=2", 4)
    data = timeline_data(drawn)
    (track,), (rank,) = drawn.tracks, data["ranks"]
    begins, lasts = rank["at"][::2], rank["at"][1::2]
    assert begins == [round(1e9 * start) for start in track.start_s]
    ends = [begin + duration for begin, duration in zip(begins, lasts, strict=True)]
    assert ends == [round(1e9 * end) for end in track.end_s]
    assert max(ends) == data["step_ns"]
