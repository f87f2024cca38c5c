"""Rows: what a point says is what is predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from simgpt.studies.errors import WorkersError
from simgpt.studies.evaluate import Row, rows_of
from simgpt.studies.inputs import inputs_of
from simulator import search
from simulator.predict import Prediction, predict
from simulator.search import best_plan
from simulator.stacks import EXECUTOR, Stack
from tests.messages import assert_names
from tests.simgpt.studies.worlds import GRID, study
from topologies.errors import DiskError
from topologies.exit_status import ExitStatus
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.placement import Placement, scheduler
from workload.gpt import GPT, find_model
from workload.plan_text import parse_plan

BASE = {"model": "tiny-1m", "machine": "frontier", "devices": 16, "batch": 16}


def row(**document: Any) -> Row:
    asked = study({**BASE, **document})
    (found,) = rows_of(inputs_of(asked), list(enumerate(asked.points())))
    return found


def shape(found: Row, *keys: str) -> tuple[Any, ...]:
    return tuple(found["prediction"]["plan"][key] for key in keys)


def test_a_row_has_what_predict_gives() -> None:
    plan = parse_plan("tp=2,dp=rest", devices=16, batch=16)
    machine = with_settings("frontier", {"device.launch": "1 ms"})
    placed = scheduler(machine, 16)
    expected = predict(find_model("tiny-1m"), plan, machine, placement=placed).as_dict()
    found = row(plan="tp=2,dp=rest", set={"device.launch": "1 ms"})
    assert found["prediction"] == expected
    assert (found["status"], found["reason"]) == ("ok", "")


def test_the_model_s_fields_may_be_set_and_ffn_follows_hidden() -> None:
    gpt = find_model("tiny-1m")
    wide = row(set={"hidden": 2 * gpt.hidden})["prediction"]
    thin = row(set={"hidden": 2 * gpt.hidden, "ffn": gpt.ffn})["prediction"]
    usual = row()["prediction"]
    rates = [p["model_flops_per_s_per_device"] * p["step_s"] for p in (usual, thin, wide)]
    assert rates[0] < rates[1] < rates[2]
    deep = row(set={"layers": 2 * gpt.layers})["prediction"]
    assert deep["model_flops_per_s_per_device"] * deep["step_s"] > 1.5 * rates[0]


def test_tokens_of_a_batch_are_sequences() -> None:
    tokens = 16 * find_model("tiny-1m").sequence
    base = {key: value for key, value in BASE.items() if key != "batch"}
    asked = study({**base, "batch_tokens": tokens})
    (found,) = rows_of(inputs_of(asked), list(enumerate(asked.points())))
    assert shape(found, "batch") == (16,)


def test_a_placement_moves_the_ranks() -> None:
    near = row(placement="contiguous", plan="z=16")
    far = row(placement="scattered:2", plan="z=16")
    assert near["prediction"]["step_s"] < far["prediction"]["step_s"]


def test_what_does_not_fit_is_infeasible_but_predicted() -> None:
    found = row(model="gpt-80b", devices=8, batch=8)
    assert found["status"] == "infeasible"
    assert_names(found["reason"], "GiB")
    assert found["prediction"]["memory"]["fits"] is False


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"batch": 7}, ["batch=7"]),
        ({"plan": "tp=3,dp=rest"}, ["tp=3", "16"]),
        ({"set": {"vpp": 2}}, ["vpp=2", "pp > 1"]),
        ({"set": {"heads": 7}}, ["heads=7", "hidden"]),
        ({"set": {"hidden": 10**9}}, ["hidden=1000000000", "200,000"]),
        ({"set": {"nodes": 100_000}}, ["nodes", "100000"]),
        ({"placement": "scattered:70"}, ["scattered:70", "2 nodes"]),
        ({"devices": 2**20, "batch": 2**20}, ["78848 devices"]),
        ({"devices": 2**20, "batch": 7}, ["78848 devices"]),
    ],
)
def test_a_point_that_cannot_run_says_why(document: dict[str, Any], named: list[str]) -> None:
    found = row(**document)
    assert (found["status"], found["prediction"]) == ("infeasible", None)
    assert_names(found["reason"], *named)


def test_a_machine_is_built_once_for_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def counted(machine: Machine, settings: Mapping[str, Any]) -> Machine:
        built.append(settings)
        return with_settings(machine, settings)

    monkeypatch.setattr("simgpt.studies.evaluate.with_settings", counted)
    asked = study(BASE, sweep={"device.launch": ["1 us", "7 us"], "tp": [1, 2], "z": [1, 2]})
    rows_of(inputs_of(asked), list(enumerate(asked.points())))
    assert built == [{"device.launch": "1 us"}, {"device.launch": "7 us"}]


def test_a_row_does_not_depend_on_the_rows_before_it() -> None:
    asked = study(GRID, machine="frontier", devices=8, batch=16, plan="dp=rest")
    inputs, points = inputs_of(asked), list(enumerate(asked.points()))
    alone = [rows_of(inputs_of(asked), [point])[0] for point in reversed(points)]
    assert rows_of(inputs, points) == alone[::-1]


def test_the_best_plan_is_asked_for_at_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers gets the point's own machine, and the keys that every answer must have."""

    def answer(
        gpt: GPT,
        machine: Machine,
        devices: int,
        batch: int,
        *,
        fixed: Mapping[str, Any],
        placement: Placement,
        stack: Stack,
    ) -> Prediction:
        assert stack == EXECUTOR
        assert machine.device.launch_s == 1e-3
        assert (dict(fixed), placement.ranks) == ({"tp": 2}, devices)
        return predict(gpt, parse_plan("tp=2,z=8", devices=devices, batch=batch), machine)

    monkeypatch.setattr(search, "best_plan", answer)
    found = row(plan="best", set={"tp": 2, "device.launch": "1 ms"})
    assert (found["reason"], shape(found, "tp", "z")) == ("", (2, 8))


def test_the_best_plan_under_a_stack_is_one_that_it_runs() -> None:
    found = row(plan="best", stack="fsdp", set={"mbs": 1}, devices=4, batch=8)
    assert (found["status"], found["prediction"]["stack"]) == ("ok", "fsdp")
    assert shape(found, "dp", "gradients") == (4, "bf16")


@pytest.mark.slow
def test_the_best_plan_is_that_of_the_search() -> None:
    fixed = {"zero": 1, "sp": False, "recompute": "none", "y": 1}
    found = row(plan="best", set=fixed, devices=4, batch=8)
    machine = load_machine("frontier")
    expected = best_plan(
        find_model("tiny-1m"),
        machine,
        4,
        8,
        fixed=fixed,
        placement=scheduler(machine, 4),
    )
    assert found["prediction"] == expected.as_dict()
    assert shape(found, "zero") == (1,)


def test_what_a_search_cannot_keep_is_the_row_s_reason() -> None:
    found = row(plan="best", set={"dispatcher": "usual", "fp8_dispatch": True})
    assert (found["status"], found["prediction"]) == ("infeasible", None)
    assert_names(found["reason"], "fp8_dispatch=true")


def raised_by(error: Exception, monkeypatch: pytest.MonkeyPatch) -> Row:
    def fails(*_: object, **__: object) -> Prediction:
        raise error

    monkeypatch.setattr("simulator.predict.predict", fails)
    return row(plan="dp=rest")


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libscipy.so: failed to map segment from shared object"),
        SystemError("error return without exception set"),
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        DiskError("no space"),
    ],
)
def test_what_the_machine_fails_at_is_no_row(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WorkersError) as raised:
        raised_by(error, monkeypatch)
    assert raised.value.exit_code == ExitStatus.MACHINE_FAILED


def test_nor_is_what_came_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    error = AttributeError("no attribute 'ndarray'")
    error.__context__ = ImportError("failed to map segment")
    with pytest.raises(WorkersError):
        raised_by(error, monkeypatch)


def test_a_bug_is_a_row_of_its_point(monkeypatch: pytest.MonkeyPatch) -> None:
    found = raised_by(KeyError("pp"), monkeypatch)
    assert (found["status"], found["prediction"]) == ("error", None)


def test_the_best_plan_is_looked_for_where_the_ranks_are_placed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the first two nodes, instead of on two that a scheduler gives."""
    found: list[Placement] = []

    def answer(*words: Any, placement: Placement, **_: Any) -> Prediction:
        found.append(placement)
        return predict(words[0], parse_plan("z=16", batch=16), words[1], placement=placement)

    monkeypatch.setattr(search, "best_plan", answer)
    rows = [row(plan="best", placement="contiguous"), row(plan="best")]
    assert [each["status"] for each in rows] == ["ok", "ok"]
    first, given = ({*each.node.tolist()} for each in found)
    assert first == {0, 1} != given


def test_training_takes_the_steps_of_its_tokens() -> None:
    """A step has 16 sequences."""
    found = row(tokens=1e9)
    step_s = found["prediction"]["step_s"]
    steps = found["training"]["steps"]
    assert steps == pytest.approx(1e9 / (16 * find_model("tiny-1m").sequence), abs=1)
    assert found["training"]["time_s"] == pytest.approx(steps * step_s, rel=1e-3)
    assert row()["training"] is None
