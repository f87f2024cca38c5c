"""What `predict`, `why` and `bench-network` say of how runs differ."""

from __future__ import annotations

import json

import pytest

from simgpt import tables
from simulator.explain.sensitivity import parameters
from tests.examples import one_in
from tests.messages import assert_names
from tests.simgpt.face import simgpt
from topologies.machine_files import load_machine

PLAN = ("tiny-1m", "--plan", "z=4,dp=rest", "--batch", "256")


@pytest.mark.usefixtures("few_numbers")
@pytest.mark.parametrize("command", ["predict", "why"])
def test_on_64_nodes_equal_runs_have_a_band_beside_the_range(command: str) -> None:
    asked = (command, *PLAN, "-m", "perlmutter", "-n", "256")
    said = " ".join(simgpt(*asked).out.split())
    answer = json.loads(simgpt(*asked, "--json").out)
    band = answer["run_to_run"]
    assert band["low_s"] == pytest.approx(0.9664 * answer["step_s"])
    assert band["high_s"] == pytest.approx(1.124 * answer["step_s"])
    assert (band["runs"], band["nodes"], band["share"]) == (145, 64, 0.8)
    shown = [tables.seconds(band[key]).split()[0] for key in ("low_s", "high_s")]
    assert_names(said, *shown, "145", "GPT-20B", "AxoNN", "64")
    assert (band["low_s"], band["high_s"]) != (answer["low_step_s"], answer["high_step_s"])


@pytest.mark.parametrize(
    ("machine", "devices"),
    one_in(3, [("perlmutter", "252"), ("alps", "256"), ("perlmutter:cray-mpich", "256")]),
)
def test_nothing_is_said_without_a_source(machine: str, devices: str) -> None:
    batch = ("--batch", devices, "-m", machine, "-n", devices)
    asked = ("predict", "tiny-1m", "--plan", "dp=rest", *batch)
    assert "GPT-20B" not in simgpt(*asked).out
    assert json.loads(simgpt(*asked, "--json").out)["run_to_run"] is None


def test_a_benchmark_has_the_band_in_rows_of_64_nodes_and_more() -> None:
    asked = ("bench-network", "-m", "frontier", "--sizes", "1GiB", "--devices", "256:512")
    said = simgpt(*asked).out
    small, large = said.splitlines()[2:4]
    assert (" to " in small, " to " in large) == (False, True)
    assert_names(said, "113", "RCCL")
    rows = json.loads(simgpt(*asked, "--json").out)["rows"]
    assert [row["run_to_run"] is None for row in rows] == [True, False]


def test_no_step_is_sensitive_to_how_runs_differ() -> None:
    found = parameters(load_machine("frontier"), "bf16", pure=True)
    assert [each.name for each in found if each.name.startswith("run_to_run")] == []
