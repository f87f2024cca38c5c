"""`simgpt why`: its text compared whole, its JSON, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

import simgpt as api
from simgpt import tables
from simulator.explain import sensitivity
from tests.messages import assert_names
from tests.simgpt.face import asked, assert_golden, simgpt
from topologies.files.units import format_quantity

SMALL = ("tiny-30k", "-m", "frontier", "--plan", "tp=2,dp=2", "--batch", "4")
VARIED = ("device.launch", "node.nics.bandwidth", "interconnect.link_bandwidth")
WHY = (
    "why",
    "tiny-1m",
    "-m",
    "frontier",
    "-n",
    "32",
    "--plan",
    "z=8,dp=rest",
    "--batch",
    "32",
    "--stack",
    "simgpt",
)


def test_the_answer_reads_as_its_golden_file() -> None:
    said = asked(*WHY)
    assert said.status == 0
    assert max(map(len, said.out.splitlines())) <= tables.WIDTH
    assert_golden("why.txt", said.out)


def test_the_budget_says_how_it_stands_to_the_range_above_it() -> None:
    """The range is above the budget, whose last row is a sum, and below it is said what it is."""
    rows = " ".join(asked(*WHY).out.split())
    parts = ("80 % range", "sum of squares", "This budget")
    above, row, below = (rows.index(part) for part in parts)
    assert above < row < below


@pytest.mark.usefixtures("few_numbers")
def test_the_json_is_the_prediction_with_the_reasons_beside_it() -> None:
    record = json.loads(simgpt("why", *SMALL, "--json").out)
    assert record["step_s"] == json.loads(simgpt("predict", *SMALL, "--json").out)["step_s"]
    why = record["why"]
    assert sum(part["share"] for part in why["path"]) == pytest.approx(1)
    assert why["sentence"].endswith(".")
    assert {"key", "value", "unit", "elasticity", "switches"} == why["sensitivity"][0].keys()
    savings = [each["saving"] for each in why["neighbouring_plans"]]
    assert savings == sorted(savings, reverse=True)


@pytest.mark.slow
def test_where_a_tuner_switches_algorithms_the_change_and_the_algorithms_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In Python, whose result has both the text and the JSON of one command; of all numbers of the
    machine those of its launches and its network are varied."""

    def few(*words: Any, **how: Any) -> list[sensitivity.MachineParameter]:
        found = sensitivity.parameters(*words, **how)
        return [each for each in found if each.name in VARIED]

    monkeypatch.setattr("simulator.explain.why.parameters", few)
    question = "tiny-2m", "kestrel", "tp=2,y=8"
    said = api.why(*question, devices=16, batch=16)
    why = said.to_dict()["why"]
    bent = {each["change"]: each["switches"] for each in why["better_machines"]}
    assert bent["doubling NIC bandwidth"] != []
    assert bent["halving kernel launches"] == []
    told = " ".join(str(said).split())
    assert f"doubling NIC bandwidth: {why['tuner']} takes " in told
    for switch in bent["doubling NIC bandwidth"][:2]:
        assert switch["from"] != switch["to"]
        size = format_quantity(switch["bytes"], "bytes", binary=True)
        how = f"{switch['to']} in place of {switch['from']} for {switch['axes']} all-reduces"
        assert f"{how} of {size}" in told
    assert "tuner switches" in told
    unbent = api.why(*question, devices=16, batch=16, set={"software.tuner": "none"})
    assert unbent.to_dict()["why"]["tuner_switches"] == []
    assert "tuner switches" not in str(unbent)


@pytest.mark.parametrize(
    ("status", "command", "named"),
    [
        (2, "why", "MODEL"),
        (2, "why nope -m frontier -n 8", "nope"),
        (2, "why gpt-5b -m fronteir -n 8", "fronteir frontier"),
        (3, "why tiny-30k -m frontier --plan tp=3", "heads=8 ffn=128 2"),
        (2, "why tiny-30k -m frontier --plan dp=2 -o /nowhere/x", "-o /nowhere"),
    ],
)
def test_wrong_input_is_one_sentence(status: int, command: str, named: str) -> None:
    said = simgpt(*command.split())
    assert said.status == status
    assert_names(said.sentence, *named.split())


@pytest.mark.slow
@pytest.mark.usefixtures("few_numbers")
def test_the_head_names_the_question_as_that_of_a_prediction_does() -> None:
    plan = ("--plan", "tp=2,dp=rest,mbs=1,precision=fp8", "--stack", "nemo", "--batch", "16")
    question = ("tiny-1m", "-m", "dgx-h100", "-n", "8", *plan)
    predicted = simgpt("predict", *question).out.partition("\n\n")[0].splitlines()
    found = simgpt("why", *question).out.partition("\n\n")[0].splitlines()
    assert found[0].startswith(f"{predicted[0]}: ")
    assert found[0].endswith(" a step")
    assert found[1:] == predicted[1:]
    assert "stack nemo" in " ".join(found)
