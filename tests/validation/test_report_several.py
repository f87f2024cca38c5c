"""Answers that differ in one thing: a report tells it in its table, its labels, its lines and its
questions, and says of what all share that all share it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.validation.test_headline import RATE, RECORD, made, too_large
from validation.report.answers import Answers
from validation.report.facts import table_of
from validation.report.figures.labels import labels
from validation.report.figures.lines import ladders_of, scaling_lines, where
from validation.report.findings import Finding, best_of, search_of
from validation.report.headline import headline
from validation.report.questions import questions_of
from validation.report.ranking import chosen
from validation.report.read_prediction import Answer

Record = Mapping[str, Any]
MODEL, MACHINE = "tiny-1m", "frontier"
PLAN = RECORD["plan_string"]


def asked(**more: Any) -> Record:
    return {"asked": {"model": MODEL, "machine": MACHINE, **more}}


# What one of two answers says that the other does not, the column of the table that tells it, and
# the words by which it is told.
DIFFERENCES: Mapping[str, tuple[Record, str, str]] = {
    "model": ({"model": "tiny-2m"}, "model", "tiny-2m"),
    "machine": ({"machine": "perlmutter"}, "machine", "perlmutter"),
    "devices": ({"devices": 64}, "devices", "64"),
    "batch": ({"plan": {**RECORD["plan"], "batch": 4096}}, "batch", "4,096"),
    "sequence": ({"fields": {"sequence": 512}}, "model", "sequence=512"),
    "setting": ({"settings": {"device.launch": "9 us"}}, "machine", "device.launch=9 us"),
    "placement": ({"placement": {"policy": "random"}}, "machine", "placement=random"),
    "compute": (asked(compute="profile"), "machine", "compute=profile"),
    "stack": (asked(stack="fsdp"), "machine", "stack=fsdp"),
    "routing": (asked(routing="uneven.toml"), "machine", "routing=uneven.toml"),
    "fp8": (asked(fp8=True), "machine", "precision=fp8"),
    "precision": ({"plan_string": f"{PLAN},precision=fp32"}, "plan", "precision=fp32"),
    "recipe": ({"plan_string": f"{PLAN},recipe=mxfp8"}, "plan", "recipe=mxfp8"),
    "offload": ({"plan_string": f"{PLAN},offload=optimizer"}, "plan", "offload=optimizer"),
    "cp": ({"plan_string": f"{PLAN},cp=2"}, "plan", "cp=2"),
    "ep": ({"plan_string": f"{PLAN},ep=4"}, "plan", "ep=4"),
}
OF_THE_PLAN = [name for name, (_, column, _) in DIFFERENCES.items() if column == "plan"]
APART = ("model", "machine", "devices", "batch")  # of which each is another question


def pair(name: str, **both: Any) -> tuple[Answer, Answer]:
    """An answer, and one that differs from it in the named thing alone."""
    return made(**both), made(**both, **DIFFERENCES[name][0])


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_table_has_what_differs_in_a_column_and_what_is_shared_above(name: str) -> None:
    _, column, words = DIFFERENCES[name]
    both = pair(name)
    table = table_of(both)
    told = [each for each in table.columns if len({*_cells(table, each)}) > 1]
    assert told == [column]
    assert words in _cells(table, column)[1]
    for each, shared in (("model", MODEL), ("machine", MACHINE)):
        assert (each in table.columns) is (column == each)
        assert (shared in table.caption) is (column != each)
    assert ("batch" in table.columns) is (name == "batch")


def _cells(table: Any, column: str) -> list[str]:
    at = list(table.columns).index(column)
    return [row[at] for row in table.rows]


@pytest.mark.parametrize("name", DIFFERENCES)
def test_labels_of_bars_tell_what_differs_and_nothing_else(name: str) -> None:
    first, second = labels(pair(name))
    assert first != second
    assert DIFFERENCES[name][2].rpartition("=")[2] in second
    said = {each.partition("=")[0].strip() for each in second.replace("\n", " ").split(",")}
    assert len(said) == 1 or name == "batch"  # whose number has a comma


@pytest.mark.parametrize("name", DIFFERENCES)
def test_another_model_machine_size_or_batch_is_another_question(name: str) -> None:
    first, second = pair(name)
    groups = [list(group.predictions) for group in questions_of(Answers([first, second]))]
    assert groups == ([[first], [second]] if name in APART else [[first, second]])


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_headline_names_what_all_share_and_nothing_that_differs(name: str) -> None:
    first, second = pair(name)
    finding = Finding("throughput", second, [first, second])
    question = headline(Answers([first, second], findings=[finding]), {}).question
    assert DIFFERENCES[name][2] not in question
    assert (MODEL in question and MACHINE in question) is (name not in APART)


@pytest.mark.parametrize("name", [name for name in DIFFERENCES if name != "devices"])
def test_a_line_over_devices_is_of_one_model_machine_and_batch(name: str) -> None:
    """Plans are no lines of their own: of them a line has the fastest, here the second."""
    slow, fast = {"tokens_per_s": 1.0}, {"tokens_per_s": 2.0}
    first = [made(**slow, devices=devices) for devices in (32, 64)]
    more = DIFFERENCES[name][0]
    second = [made(**fast, **more, devices=devices) for devices in (32, 64)]
    every = [first[1], second[1], first[0], second[0]]
    found = scaling_lines(ladders_of(Answers(every)))
    if name in OF_THE_PLAN:
        assert list(found.values()) == [second]
        return
    assert list(found.values()) == [first, second]
    told = DIFFERENCES[name][2].partition("=")[2] or DIFFERENCES[name][2]
    one, other = found
    assert (told in one, told.replace(",", "") in other.replace(",", "")) == (False, True)


def test_a_ladder_of_growing_models_is_named_by_its_machine_alone() -> None:
    rungs = [made(devices=32), made(devices=64, model="tiny-2m")]
    (ladder,) = ladders_of(Answers(rungs)).values()
    assert where(ladder) == MACHINE
    moved = [made(devices=32), made(devices=64, machine="perlmutter")]
    assert ladders_of(Answers(moved)) == {}  # neither a line of a model nor of a machine


def test_the_best_of_several_models_is_of_most_flops_per_device_that_fits() -> None:
    """2 TFLOP/s on each of 32 devices, where 3 do not fit and 1 has the shortest step."""
    short = made(step_s=0.1, **{RATE: 1e12})
    best = made(model="tiny-2m", machine="perlmutter", step_s=9.0, **{RATE: 2e12})
    every = [short, too_large(model="gpt-5b", **{RATE: 3e12}), best]
    assert best_of(every, "throughput") is best
    head = headline(Answers(every), {})
    assert head.about is best
    assert "tiny-2m" in head.sentence
    assert "perlmutter" in head.sentence


NUMBERS: Mapping[str, tuple[Record, float]] = {
    "devices": ({"devices": 64}, 64),
    "batch": ({"plan": {**RECORD["plan"], "batch": 4096}}, 4096),
    "step": ({"step_s": 3.0}, 3.0),
    "tokens/s": ({"tokens_per_s": 5.0}, 5.0),
    "HFU": ({"hfu": 0.75}, 0.75),
    "efficiency": ({"scaling": {"efficiency": 0.5}}, 0.5),
    "peak memory": ({"memory": {**RECORD["memory"], "peak_bytes": 7}}, 7),
    "days": ({"training": {"tokens": 1.0, "steps": 1, "time_s": 5.0, "node_s": 6.0}}, 5.0),
    "node-hours": ({"training": {"tokens": 1.0, "steps": 1, "time_s": 5.0, "node_s": 6.0}}, 6.0),
}


@pytest.mark.parametrize("column", NUMBERS)
def test_a_column_of_numbers_is_sorted_by_its_own_number(column: str) -> None:
    changes, value = NUMBERS[column]
    table = table_of([made(), made(**changes)])
    assert table.values[column][1] == value
    assert [each for each in table.columns[table.left :] if each not in table.values] == ["fits"]


def test_a_point_of_the_scatter_is_its_rows_step_and_peak() -> None:
    memory = {**RECORD["memory"], "peak_bytes": 3, "capacity_bytes": 4}
    found = [made(step_s=2.0, memory=memory), made(step_s=2.0, low_step_s=1.0, high_step_s=5.0)]
    first, second = table_of(found).marks
    assert first == {"x": "2", "y": "3", "room": "4", "low": "2", "high": "2"}
    assert (second["low"], second["high"]) == ("1", "5")


def test_the_answer_and_the_best_of_each_search_are_drawn_however_many_there_are() -> None:
    """Of ten, three may be drawn: the last, which the page is about, a search's best, the first."""
    every = [made(step_s=1.0 + number) for number in range(10)]
    search = Finding("time", every[5], [every[5]], proof=("1 plan", 0.0))
    found = chosen(every, Answers(every, findings=[search]), every[9], 3)
    assert found == [every[0], every[5], every[9]]


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [("fields", "model_set", {"sequence": 512}), ("settings", "set", {"device.launch": "9 us"})],
)
def test_what_was_set_for_a_search_was_set_for_each_of_its_plans(
    key: str, field: str, value: Any
) -> None:
    plans = [{**RECORD, "plan_string": plan} for plan in ("dp=32", "z=2,dp=16")]
    document = {"machine": MACHINE, key: value, "plans": plans, "certificate": "2 plans"}
    answers, _ = search_of(document, "tp")
    assert [each.asked[field] for each in answers] == [value, value]
