"""Reports: what is read from files is checked, escaped, and drawn from a simulation of the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simgpt.asked_again import ASKING
from simulator.predict import predict
from tests.messages import assert_names, names
from topologies.machine_files import load_machine, with_settings
from topologies.placement import scheduler
from validation.report.answer_files import ReportError
from validation.report.answers import Answers, read_answers
from validation.report.figures.drawn_step import staged
from validation.report.figures.lines import ladders_of, scaling_lines
from validation.report.figures.scaling_figures import published_points, scaling
from validation.report.figures.step_figures import _covered
from validation.report.figures.timeline_data import key_of, timeline_data
from validation.report.headline import headline
from validation.report.write_report import write_report
from validation.seeds.candidates import published_hfus, seed_runs
from validation.weak_scaling import Rung, ladders
from workload.gpt import find_model
from workload.plan_text import parse_plan

RANGE = ("low_step_s", "high_step_s", "range")
BAD = '</script><script>alert("x")</script><img src=x onerror=alert(1)>&amp;'


def answer(plan: str = "z=4,dp=rest", devices: int = 32, **changes: Any) -> dict[str, Any]:
    machine = load_machine("frontier")
    parsed = parse_plan(plan, devices=devices, batch=32)
    placement = scheduler(machine, devices)
    record = predict(find_model("tiny-1m"), parsed, machine, placement=placement).as_dict()
    for key in RANGE:  # of this very step, whose length tests change
        del record[key]
    return {**record, **changes}


def written(folder: Path, name: str, *records: Any) -> Path:
    path = folder / name
    path.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return path


def test_a_prediction_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = answer()
    (found,) = read_answers([written(tmp_path, "a.json", record)]).predictions
    assert (found.step_s, found.devices, found.batch) == (record["step_s"], 32, 32)
    assert found.fits
    assert ASKING.command_of(found.asked) == (
        "simgpt predict tiny-1m -m frontier -n 32 --stack simgpt --plan z=4,dp=8 --batch 32"
    )


def test_measured_steps_come_from_runs_and_from_validations(tmp_path: Path) -> None:
    run = {"model": "tiny-2m", "plan_string": "dp=2", "losses": [1.0], "step_s": 2.0}
    row = {"model": "gpt-5b", "machine": "frontier", "devices": 8, "measured_s": 4.0}
    found = read_answers(
        [
            written(tmp_path, "run.json", {**run, "predicted_step_s": 3.0}),
            written(tmp_path, "axonn.json", {"rows": [{**row, "predicted_s": 3.0}]}),
        ]
    )
    assert [pair.name for pair in found.pairs] == ["tiny-2m", "gpt-5b on 8 of frontier"]
    assert [pair.error for pair in found.pairs] == [0.5, -0.25]


def test_a_sweeps_rows_are_predictions_or_reasons_and_its_cut_last_line_is_passed_by(
    tmp_path: Path,
) -> None:
    path = written(
        tmp_path,
        "results.jsonl",
        {"id": "1", "point": {"plan.z": 4}, "status": "done", "prediction": answer()},
        {"id": "2", "point": {"plan.z": 5}, "status": "infeasible", "reason": "z=5 does not"},
    )
    path.write_text(path.read_text(encoding="utf-8") + '\n{"id": "3", "po', encoding="utf-8")
    found = read_answers([tmp_path])
    assert len(found.predictions) == 1
    assert found.failures == [("z=5", "z=5 does not")]


def test_a_folder_may_hold_other_files_too(tmp_path: Path) -> None:
    written(tmp_path, "a.json", answer())
    written(tmp_path, "other.json", {"something": "else"})
    (tmp_path / "notes.txt").write_text("hello", encoding="utf-8")
    assert len(read_answers([tmp_path]).predictions) == 1


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", ("a.json", "JSON")),
        ("[1, 2]", ("a.json", "predict", "search", "sweep", "why", "plan-run", "run", "validate")),
        ('{"a": 1}', ("a.json", "predict")),
        ('{"breakdown_s": {}}', ("a.json", "memory")),
        (json.dumps({"rows": []}), ("a.json", "predict")),
        ('{"breakdown_s": {}, "memory": 3}', ("memory", "3")),
        ("[" * 100_000, ("32",)),
        ('{"losses": [], "step_s": NaN}', ("NaN",)),
    ],
)
def test_a_file_that_holds_no_answer_is_refused(
    content: str, named: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ReportError, check=names(*named)):
        read_answers([path])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", 3),
        ("devices", 0),
        ("devices", 1.5),
        ("devices", True),
        ("step_s", "1"),
        ("step_s", -1.0),
        ("step_s", 10**400),
        ("breakdown_s", {"compute": None}),
        ("plan", {"batch": "many"}),
        ("why", {"sentence": 3}),
        ("why", {"sentence": "", "along": "", "path_basis": "", "path": [3]}),
        ("why", {"sentence": "", "along": "", "path_basis": "", "path": [{"axes": 1}]}),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(key: str, value: Any, tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", {**answer(), key: value})
    with pytest.raises(ReportError, check=names("a.json")):
        read_answers([path])


def test_a_report_is_about_the_step_of_most_flops_per_device_that_fits(tmp_path: Path) -> None:
    rate = "model_flops_per_s_per_device"
    slow, fast = answer(), answer("dp=rest")
    huge = {**fast, rate: 1e15, "memory": {**fast["memory"], "verdict": "does not fit"}}
    found = read_answers([written(tmp_path, "r.jsonl", *({"prediction": r} for r in
                         (slow, fast, huge)))])  # fmt: skip
    head = headline(found, {})
    assert head.about is not None
    assert head.about.flops_per_s / 32 == pytest.approx(max(slow[rate], fast[rate]))
    assert_names(head.question, "3", "tiny-1m", "32", "frontier", "FLOP/s")


def test_a_step_made_otherwise_is_not_drawn(tmp_path: Path) -> None:
    record = answer()
    path = written(tmp_path, "a.json", {**record, "step_s": 1.01 * record["step_s"]})
    (found,) = read_answers([path]).predictions
    with pytest.raises(ReportError, check=names("a.json")):
        staged(found, ASKING.step_of)


def test_a_sweeps_point_says_what_was_set_and_is_drawn_with_it(tmp_path: Path) -> None:
    slow = with_settings("frontier", {"device.launch": "30 us"})
    plan = parse_plan("z=4,dp=rest", devices=32, batch=32)
    placed = scheduler(slow, 32)
    record = predict(find_model("tiny-1m"), plan, slow, placement=placed).as_dict()
    point = {"machine": "frontier", "machine.device.launch": "30 us", "plan": "z=4,dp=rest"}
    path = written(tmp_path, "r.jsonl", {"id": 0, "point": point, "prediction": record})
    (found,) = read_answers([path]).predictions
    assert ASKING.command_of(found.asked).endswith("--batch 32 --set 'device.launch=30 us'")
    assert staged(found, ASKING.step_of).prediction.step_s == record["step_s"]


def test_an_answer_opens_no_file_by_the_name_of_its_machine(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("name = 'own'", encoding="utf-8")
    (found,) = read_answers([written(tmp_path, "a.json", answer(machine=str(own)))]).predictions
    with pytest.raises(ReportError, check=names(str(own))):
        staged(found, ASKING.step_of)


def page_of(tmp_path: Path, *records: dict[str, Any]) -> str:
    paths = [written(tmp_path, f"{n}.json", record) for n, record in enumerate(records)]
    page = tmp_path / "report.html"
    answers = read_answers(paths)
    write_report(answers, {}, asking=ASKING, page=page, folder=None, progress=lambda _: None)
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("key", ["model", "machine", "plan_string"])
def test_whatever_a_file_says_is_escaped(key: str, tmp_path: Path) -> None:
    record = {**answer(), key: BAD, "placement": {"policy": BAD}}
    text = page_of(tmp_path, record)
    assert "<img" not in text
    assert "alert(" in text.replace("&#34;", '"')
    assert text.count("<script") == 0  # nothing could be simulated, so nothing is interactive


def test_what_an_answer_was_asked_is_escaped_too(tmp_path: Path) -> None:
    asked = {"command": BAD, "model": BAD, "machine": BAD, "compute": BAD, "files": {BAD: BAD}}
    text = page_of(tmp_path, {**answer(), "asked": asked, "fields": {BAD: BAD}})
    assert "<img" not in text
    assert "alert(" in text.replace("&#34;", '"')
    assert text.count("<script") == 0
    rows = {"title": BAD, "scaling": {"rungs": BAD}, "asked": {"command": BAD, "folder": BAD}}
    points = [{"point": {"model": BAD, "placement": BAD, BAD: BAD}, "prediction": answer()}]
    assert "<img" not in page_of(tmp_path, {**rows, "rows": points})


@pytest.mark.parametrize(
    "asked", [3, {"files": 3}, {"model": 3}, {"compute": []}, {"files": {"a.toml": None}}]
)
def test_a_question_of_the_wrong_kind_is_passed_by_or_refused(asked: Any, tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", answer(asked=asked, settings=[], fields="tp"))
    try:
        (found,) = read_answers([path]).predictions
    except ReportError as error:
        assert_names(str(error), "model", "3")
    else:
        assert found.asked["model"] == "tiny-1m"


def test_a_reason_of_a_sweep_and_the_name_of_a_part_are_escaped(tmp_path: Path) -> None:
    record = answer(devices=8)
    record["breakdown_s"] = {**record["breakdown_s"], BAD: record["step_s"]}
    written(tmp_path, "a.jsonl", {"prediction": record}, {"point": {BAD: BAD}, "reason": BAD})
    page = tmp_path / "report.html"
    write_report(
        read_answers([tmp_path]), {}, asking=ASKING, page=page, folder=None, progress=lambda _: None
    )
    text = page.read_text(encoding="utf-8")
    assert "<img" not in text
    assert text.count("<script") == 2  # the timeline's data and its script


def test_the_page_loads_nothing_and_is_the_same_twice(tmp_path: Path) -> None:
    record = answer(devices=8)
    first, second = page_of(tmp_path, record), page_of(tmp_path, record)
    assert first == second
    assert "default-src 'none'" in first
    outside = set(re.findall(r'(?:src|href)="([^#"][^"]*)"', first)) - {"data:,"}
    assert outside == set()
    identifiers = re.findall(r'\bid="([^"]+)"', first)
    assert len(identifiers) == len(set(identifiers))


def test_the_timeline_has_every_op_of_the_simulated_step(tmp_path: Path) -> None:
    (found,) = read_answers([written(tmp_path, "a.json", answer("tp=2,dp=2,pp=2", 8))]).predictions
    scene = staged(found, ASKING.step_of)
    data = timeline_data(scene)
    assert scene.is_whole
    assert {rank["stage"] for rank in data["ranks"]} == {"0", "1"}
    for rank in data["ranks"]:
        ops = data["stages"][rank["stage"]]["ops"]
        assert len(rank["at"]) == 2 * len(ops)
        assert max(rank["at"][::2]) <= data["step_ns"]
    assert data["step_ns"] == pytest.approx(1e9 * found.step_s, rel=0.01)  # slots of unlike ranks


def test_memory_over_time_has_the_predicted_peak(tmp_path: Path) -> None:
    (found,) = read_answers([written(tmp_path, "a.json", answer())]).predictions
    curve = staged(found, ASKING.step_of).memory
    assert max(map(sum, zip(*curve.parts.values(), strict=True))) == found.peak_bytes


def test_lines_of_scaling_are_models_or_in_weak_scaling_machines(tmp_path: Path) -> None:
    strong = [answer(devices=n) for n in (16, 32)]
    weak = [answer(devices=16), answer(devices=32, model="tiny-2m")]
    for records, name in ((strong, "tiny-1m on frontier"), (weak, "frontier")):
        path = written(tmp_path, "r.jsonl", *({"prediction": record} for record in records))
        lines = scaling_lines(ladders_of(read_answers([path])))
        assert {key: [a.devices for a in line] for key, line in lines.items()} == {name: [16, 32]}


def test_published_points_are_drawn_over_the_lines_of_scaling(tmp_path: Path) -> None:
    records = [
        record | {"devices": devices, "plan": record["plan"] | {"batch": 8192}}
        for record, devices in ((answer(model="gpt-5b"), 512), (answer(model="gpt-80b"), 8192))
    ]
    path = written(tmp_path, "r.jsonl", *({"prediction": record} for record in records))
    lines = scaling_lines(ladders_of(read_answers([path])))
    points = published_points(lines)
    assert [(at.devices, step.hfu) for at, step in points] == [(512, 0.411), (8192, 0.363)]
    left, right = scaling(lines).axes
    assert left.get_lines()[-1].get_label() == right.get_lines()[-1].get_label() == "published"
    assert [100 * step.hfu for _, step in points] == pytest.approx([41.1, 36.3])
    changed = [record | {"settings": {"network.background": 0.1}} for record in records]
    path = written(tmp_path, "s.jsonl", *({"prediction": record} for record in changed))
    assert published_points(scaling_lines(ladders_of(read_answers([path])))) == []


def test_the_share_of_a_bin_is_what_spans_cover_of_it() -> None:
    """Spans from 0.5 to 1.5 and from 2 to 4 over bins of a second."""
    import numpy as np

    covered = _covered(np.arange(6.0), np.array([2.0, 0.5]), np.array([4.0, 1.5]))
    assert covered.tolist() == [0.5, 0.5, 1.0, 1.0, 0.0]


def test_every_published_point_of_axonn_stands_on_a_rung_of_the_ladder() -> None:
    rungs = {name for names in ladders().values() for name in names}
    assert rungs >= {name for name in published_hfus() if seed_runs()[name].stack == "axonn"}


def test_a_rung_without_a_published_point_has_no_error() -> None:
    prediction = predict(
        find_model("tiny-1m"), parse_plan("dp=2", batch=2), load_machine("frontier")
    )
    assert Rung(prediction, None).error is None
    twice = Rung(prediction, 2 * prediction.hfu)
    assert twice.error == pytest.approx(1.0)  # published half as long a step as we predict
    assert twice.as_dict()["devices"] == 2


def test_no_answers_no_report(tmp_path: Path) -> None:
    with pytest.raises(ReportError, check=names(str(tmp_path))):
        read_answers([tmp_path])
    assert headline(Answers(), {}).about is None


def test_a_search_is_read_plan_by_plan_with_what_it_proved(tmp_path: Path) -> None:
    plan, slower = answer(), answer("z=2,dp=rest")
    certificate = "2 legal plans, none better"
    document = {
        "machine": "frontier:rccl-default",
        "placement": {"policy": "contiguous"},
        "settings": {"device.launch": "5 us"},
        "plans": [plan, slower],
        "memory_front": [plan],
        "certificate": certificate,
    }
    found = read_answers([written(tmp_path, "search.json", document)])
    assert [each.label for each in found.predictions] == ["plan 1", "plan 2"]
    assert {each.asked["machine"] for each in found.predictions} == {"frontier:rccl-default"}
    asked = found.predictions[0].asked
    assert (asked["placement"], asked["set"]) == ("contiguous", {"device.launch": "5 us"})
    assert certificate in headline(found, {}).sentence
    with pytest.raises(ReportError, check=names("search.json", "plans")):
        read_answers([written(tmp_path, "search.json", {**document, "plans": [3]})])


def test_the_key_of_the_timeline_names_each_colour_once(tmp_path: Path) -> None:
    (found,) = read_answers(
        [written(tmp_path, "a.json", answer("tp=2,z=2,dp=rest", 8))]
    ).predictions
    key = key_of([timeline_data(staged(found, ASKING.step_of))])
    colours = [each["colour"] for each in key]
    assert len(colours) == len(set(colours))
    assert any(each["name"] == "matmul" for each in key)
    assert any(each["name"].endswith(" x") for each in key)
