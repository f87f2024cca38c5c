"""`simgpt report` on searches and sweeps: the question that was asked comes first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simgpt.asked_again import ASKING
from simgpt.studies.rows import line_of
from tests.messages import assert_names, names
from tests.simgpt.face import simgpt
from tests.simgpt.test_report_page import answered, page_of
from validation.report.answer_files import ReportError
from validation.report.answers import Answers, read_answers
from validation.report.figures.drawn_step import staged
from validation.report.figures.efficiency import reach_of
from validation.report.figures.labels import labels
from validation.report.figures.lines import ladders_of, scaling_lines
from validation.report.figures.scaling_figures import published_points
from validation.report.findings import sweep_of
from validation.report.headline import headline

pytestmark = pytest.mark.usefixtures("figures_left_out")

TITLE = "How deep?"
LAYERS = f"""
title = "{TITLE}"
model = "tiny-1m"
machine = "frontier"
devices = 16
batch = 16
plan = "z=4,dp=rest"
tokens = "1B"
[sweep]
model.layers = [4, 6]
"""
STRONG = """
title = "Tiny, strongly"
model = "tiny-1m"
machine = "frontier"
batch = 64
plan = "dp=rest"
[scaling]
kind = "strong"
devices = [1, 2, 64]
"""
FEW = "pp=1,y=1,zero=1,mbs=1,overlap=all,recompute=full,order=tp-dp-pp"
SEARCH = ("search", "tiny-1m", "-m", "frontier", "-n", "16", "--batch", "16", "--workers", "1")


def swept(folder: Path, text: str, *words: str) -> Path:
    """The results' folder of a study, which lies in the folder too."""
    study = folder / "study.toml"
    study.write_text(text, encoding="utf-8")
    said = simgpt("sweep", str(study), "-o", str(folder / "results"), *words)
    assert said.status == 0, said.err
    return folder / "results"


def test_a_sweep_of_the_model_is_told_apart_asked_again_and_drawn(tmp_path: Path) -> None:
    found = read_answers([swept(tmp_path, LAYERS)])
    first, second = found.predictions
    assert labels([first, second]) == ["layers=4", "layers=6"]
    assert [each.model for each in found.predictions] == [
        "tiny-1m with layers=4",
        "tiny-1m with layers=6",
    ]
    assert ASKING.command_of(second.asked).endswith(" --tokens 1000000000")
    assert staged(second, ASKING.step_of).prediction.step_s == second.step_s
    again = simgpt(*ASKING.command_of(second.asked).split()[1:], "--json")
    assert json.loads(again.out)["step_s"] == second.step_s


def test_a_machine_beside_a_study_is_named_from_where_the_command_was_given(tmp_path: Path) -> None:
    own = Path("topologies/machines/frontier.toml").read_text(encoding="utf-8")
    (tmp_path / "own.toml").write_text(own, encoding="utf-8")
    found = read_answers([swept(tmp_path, LAYERS.replace('"frontier"', '"own.toml"'))])
    first, _ = found.predictions
    assert first.machine == "frontier (own.toml)"
    assert f"-m {tmp_path / 'own.toml'} -n 16" in ASKING.command_of(first.asked)
    assert staged(first, ASKING.step_of).prediction.step_s == first.step_s


def test_a_changed_model_is_not_beside_what_was_published_of_the_preset(tmp_path: Path) -> None:
    """The rung of 512 GCDs, for which there is a published step, with a layer less."""
    found = read_answers([swept(tmp_path, LAYERS)]).predictions
    record = json.loads((tmp_path / "results" / "results.jsonl").read_text().splitlines()[0])
    del record["checksum"]
    rows = []
    for devices in (512, 1024):
        for fields in ({}, {"model.layers": 23}):
            point = {"model": "gpt-5b", "machine": "frontier", "devices": devices, **fields}
            prediction = {**record["prediction"], "model": "gpt-5b", "devices": devices}
            prediction["plan"] = {**prediction["plan"], "batch": 8192}
            rows.append({**record, "point": point, "prediction": prediction})
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    lines = scaling_lines(ladders_of(read_answers([path])))
    assert list(lines) == ["gpt-5b on frontier", "gpt-5b with layers=23 on frontier"]
    assert {at.model for at, _ in published_points(lines)} == {"gpt-5b"}
    assert len(found) == 2


def test_a_row_that_was_changed_is_refused_by_name(tmp_path: Path) -> None:
    results = swept(tmp_path, LAYERS) / "results.jsonl"
    changed = results.read_text(encoding="utf-8").replace('"step_s":0.', '"step_s":1.', 1)
    results.write_text(changed, encoding="utf-8")
    with pytest.raises(ReportError, check=names("results.jsonl", "1")):
        read_answers([results])


def test_only_a_last_line_that_has_no_end_is_forgiven(tmp_path: Path) -> None:
    results = swept(tmp_path, LAYERS) / "results.jsonl"
    whole = results.read_bytes()
    results.write_bytes(whole + whole[:100])
    assert len(read_answers([results]).predictions) == 2
    results.write_bytes(whole[:-1])
    assert len(read_answers([results]).predictions) == 2
    for damaged in (whole[:-2] + b"\n", whole + b"{\n", whole + b"\n"):
        results.write_bytes(damaged)
        with pytest.raises(ReportError, check=names("results.jsonl", "JSON")):
            read_answers([results])


def test_a_row_without_a_checksum_is_believed_only_where_rows_had_none(tmp_path: Path) -> None:
    results = swept(tmp_path, LAYERS) / "results.jsonl"
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    del rows[1]["checksum"]
    results.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    with pytest.raises(ReportError, check=names("2", "checksum")):
        read_answers([results])
    study = tmp_path / "results" / "study.json"
    record = json.loads(study.read_text(encoding="utf-8"))
    study.write_text(json.dumps({**record, "format": 1}), encoding="utf-8")
    assert len(read_answers([results]).predictions) == 2


@pytest.mark.slow
def test_a_studys_page_has_its_title_command_and_training(tmp_path: Path) -> None:
    folder = swept(tmp_path, LAYERS)
    said = simgpt("sweep", str(tmp_path / "study.toml"), "-o", str(folder)).out
    assert_names(said, "FLOP/s")  # by which they are ranked
    page = page_of(folder / "results.jsonl")
    assert TITLE in page
    (question,) = [line for line in page.splitlines() if line.endswith("?") and line != TITLE]
    assert_names(question, "2", "tiny-1m", "16", "frontier", "FLOP/s")
    assert f"simgpt sweep {tmp_path / 'study.toml'} -o {folder}" in page
    assert_names(page, "1 B")
    assert "\ndays\n" in page


def test_the_json_of_sweeps_is_read_as_their_rows_are(tmp_path: Path) -> None:
    folder = swept(tmp_path, LAYERS)
    words = ("-o", str(folder), "--json", "--sort", "time")
    (tmp_path / "s.json").write_text(
        simgpt("sweep", str(tmp_path / "study.toml"), *words).out, encoding="utf-8"
    )
    ours = ("predict", "tiny-1m", "-m", "frontier", "-n", "16", "--batch", "16")
    by_words = answered(tmp_path / "p.json", *ours, "--plan", "dp=rest", "--sweep", "z=2,4")
    kept, told = read_answers([folder]), read_answers([tmp_path / "s.json"])
    commands = [{ASKING.command_of(a.asked) for a in f.predictions} for f in (kept, told)]
    assert commands[0] == commands[1]
    question = headline(told, {}).question
    assert_names(question, "2", "tiny-1m", "16", "frontier", "step")
    assert "FLOP/s" not in question
    assert headline(told, {}).study == TITLE
    found = read_answers([by_words])
    assert labels(found.predictions) in (["z=2", "z=4"], ["z=4", "z=2"])
    assert found.commands == [
        f"simgpt {' '.join(ours)} --plan dp=rest --sweep z=2,4 --json -o {by_words}"
    ]


def test_a_scaling_study_says_how_far_it_scales(tmp_path: Path) -> None:
    folder = swept(tmp_path, STRONG)
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for row, efficiency in zip(rows, (1.0, 0.8, 0.5), strict=True):
        row["scaling"]["efficiency"] = efficiency
    (folder / "results.jsonl").write_bytes(b"".join(map(line_of, rows)))
    head = headline(read_answers([folder]), {})
    assert head.answer == "2 devices"
    assert_names(head.question, "80 %")
    assert_names(head.sentence, "2", "80.0 %", "50.0 %", "64")
    assert head.about is not None
    assert head.about.devices == 2
    page = page_of(folder / "results.jsonl")
    assert "\nefficiency\n" in page
    assert "Tiny, strongly" in page


def ladder(*efficiencies: float | None) -> Answers:
    """A scaling study on 1, 2, 4, … devices of which only the efficiencies matter."""
    said = simgpt("predict", "tiny-1m", "-m", "frontier", "-n", "8", "--json").out
    record = json.loads(said)
    scaling: dict[str, Any] = {"kind": "weak"}
    rows = [
        {
            "point": {"model": "tiny-1m", "devices": 2**n},
            "prediction": {**record, "devices": 2**n},
            "scaling": {**scaling, "efficiency": efficiency},
        }
        for n, efficiency in enumerate(efficiencies)
    ]
    answers, _, finding = sweep_of([(f"row {n}", row) for n, row in enumerate(rows)], {})
    return Answers(answers, findings=[finding])


@pytest.mark.parametrize(
    ("efficiencies", "last", "beyond", "named"),
    [
        ((1.0, 0.9, 0.85), 4, 0, "4 85.0"),
        ((1.0, 0.7, 0.9), 1, 2, "1 100.0 70.0 2"),
        ((1.0, None, 0.9), 4, 0, "4 90.0"),
        ((1.0, None, None), 0, 0, ""),
    ],
)
def test_reach_is_the_last_rung_before_the_first_that_loses_a_fifth(
    efficiencies: tuple[float | None, ...], last: int, beyond: int, named: str
) -> None:
    reach = reach_of(ladder(*efficiencies).findings[0].ladders)
    assert (reach.last.devices if reach else 0) == last
    assert (reach.beyond.devices if reach and reach.beyond else 0) == beyond
    assert_names(reach.sentence if reach else "", *named.split())


@pytest.mark.slow
def test_a_searchs_page_is_about_the_best_plan_on_the_devices_asked_for(tmp_path: Path) -> None:
    path = answered(tmp_path / "s.json", *SEARCH, "--also-devices", "8", "--plan", FEW)
    head = headline(read_answers([path]), {})
    assert_names(head.question, "tiny-1m", "16", "frontier")
    assert head.about is not None
    assert (head.about.devices, head.about.label) == (16, "plan 1")
    assert_names(head.sentence, "tiny-1m", "16")
    page = page_of(path)
    assert "simgpt search tiny-1m -m frontier -n 16" in page
    assert page.index("\nplan 1\n") < page.index("\ndevices 1\n")


def test_a_search_that_was_stopped_says_how_far_off_it_may_be(tmp_path: Path) -> None:
    path = answered(tmp_path / "s.json", *SEARCH, "--plan", FEW, "--objective", "energy")
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**record, "gap": 0.25}), encoding="utf-8")
    head = headline(read_answers([path]), {})
    assert_names(head.sentence, "25.0 %")
    assert head.answer.endswith("J")
    ranked = {key: value for key, value in record.items() if key not in ("gap", "certificate")}
    path.write_text(json.dumps({**ranked, "correlation": "Tau: 0.50."}), encoding="utf-8")
    head = headline(read_answers([path]), {})
    assert head.sentence.endswith(" Tau: 0.50.")
    assert "25.0 %" not in head.sentence
    path.write_text(json.dumps({**record, "plans": []}), encoding="utf-8")
    head = headline(read_answers([path]), {})
    assert head.about is None
    assert f"\n{head.answer}\n" in page_of(path)


def test_a_reason_with_another_line_end_is_one_row(tmp_path: Path) -> None:
    swept(tmp_path, LAYERS)
    path = tmp_path / "results" / "results.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    bad = {**rows[0], "status": "error", "reason": "one\u2028two", "prediction": None}
    path.write_bytes(b"".join(map(line_of, (bad, *rows))))
    assert len(read_answers([path]).predictions) == len(rows)
