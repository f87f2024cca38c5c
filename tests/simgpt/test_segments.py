"""`--segment` and racks: what predict and search answer, and say of devices that stay idle."""

from __future__ import annotations

import json
from typing import Any

import simgpt
from tests.messages import assert_names
from tests.simgpt.face import simgpt as run

ASKED = ("gpt-5b", "-m", "gb200-nvl72", "-n", "128", "--batch", "128")


def predicted(*words: str) -> dict[str, Any]:
    said = run("predict", *ASKED, "--plan", "z=64,dp=2", "--json", *words)
    assert said.status == 0
    record: dict[str, Any] = json.loads(said.out)
    return record


def test_groups_of_64_lie_in_one_rack_unless_racks_are_to_be_filled() -> None:
    segments, filled = predicted(), predicted("--segment", "1")
    assert segments["placement"]["axes"]["z"] == "inside a node"
    assert "2 nodes" in filled["placement"]["axes"]["z"]
    assert segments["step_s"] < filled["step_s"]
    assert segments["placement"]["segments"] == {
        **{"trays": 16, "per_node": 64, "nodes": 2},
        "idle": 16,
    }
    assert_names(run("predict", *ASKED, "--plan", "z=64,dp=2").out, "16")


def test_search_and_sweep_and_python_lay_ranks_in_the_same_segments() -> None:
    plan = ("--plan", "tp=1,y=1,z=64,dp=2,pp=1,mbs=1,zero=0,recompute=full,overlap=none")
    found = run("search", *ASKED, *plan, "--json")
    best = json.loads(found.out)
    assert best["placement"]["segments"]["idle"] == 16
    text = best["plans"][0]["plan_string"]
    same = simgpt.predict("gpt-5b", "gb200-nvl72", text, devices=128, batch=128)
    assert same.step_s == best["plans"][0]["step_s"]
    two = simgpt.predict("gpt-5b", "gb200-nvl72", text, devices=128, batch=128, segment=8)
    assert two.step_s == same.step_s  # two segments of 8 trays are in each rack
    rows = simgpt.predict(
        "gpt-5b", "gb200-nvl72", text, devices=128, batch=128, sweep={"segment": [1, 16]}
    )
    assert min(row["prediction"]["step_s"] for row in rows.to_dict()["rows"]) == same.step_s


def test_machines_without_racks_refuse_segments() -> None:
    said = run("predict", "gpt-5b", "-m", "dgx-h100", "-n", "16", "--segment", "2")
    assert said.status == 2
    assert "racks" in said.err
