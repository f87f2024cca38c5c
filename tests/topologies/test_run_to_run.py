"""How runs differ: the bands of the machine files are those of the measured runs, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.messages import assert_names
from topologies.collectives.benchmark import bench
from topologies.errors import MachineError
from topologies.files.reading import shipped_text
from topologies.hardware.run_to_run import Band
from topologies.machine import Machine, machine_to_dict
from topologies.machine_files import load_machine, with_settings
from topologies.shipped import machine_names

KINDS = ("all_gather", "reduce_scatter", "all_reduce")
RUNS = {"perlmutter": "placement_perlmutter_nanogpt20b_256gpu",
        "frontier": "placement_frontier_nanogpt20b_512gcd"}  # fmt: skip
TABLES: dict[str, dict[str, Any]] = json.loads(shipped_text("validation", "data/network.json"))[
    "tables"
]


def band_of(machine: Machine, what: str) -> Band:
    band = machine.band(what, 64)
    assert band is not None
    return band


@pytest.mark.parametrize("name", RUNS)
def test_the_band_of_a_step_is_that_of_the_measured_runs(name: str) -> None:
    seconds = [row[1] for row in TABLES[RUNS[name]]["rows"]]
    low, median, high = np.percentile(seconds, [10, 50, 90])
    band = band_of(load_machine(name), "step")
    assert (band.nodes, band.runs) == (64, len(seconds))
    assert (band.low, band.high) == pytest.approx((low / median, high / median), rel=1e-3)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_band_of_a_collective_is_that_of_the_measured_runs(name: str, kind: str) -> None:
    table = TABLES[f"runs_{name}_nanogpt20b_collectives"]
    at = table["columns"].index(f"{kind}_seconds")
    of = {row[0]: row[at] for row in table["rows"]}
    band = band_of(load_machine(name), kind)
    assert (band.nodes, band.runs) == (table["nodes"], table["runs"])
    assert (band.low, band.high) == pytest.approx((of[10] / of[50], of[90] / of[50]), rel=1e-3)


def test_machines_without_runs_have_no_band() -> None:
    having = {name for name in machine_names() if load_machine(name).run_to_run is not None}
    assert having == set(RUNS)


def test_neither_other_software_nor_machines_that_build_on_it_take_a_band_over(
    tmp_path: Path,
) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('base = "frontier"\n', encoding="utf-8")
    for name in ("frontier:cray-mpich", "perlmutter:pccl-nccl", "64x4xA100-40", str(mine)):
        assert load_machine(name).run_to_run is None


def test_below_the_nodes_of_the_runs_there_is_no_band() -> None:
    machine = load_machine("perlmutter")
    assert machine.band("step", 63) is None
    assert machine.band("all_to_all", 64) is None
    small, large = bench(machine, "all_gather", [2**20], [128, 256])
    assert (small.as_dict()["run_to_run"], large.band) == (None, band_of(machine, "all_gather"))
    found = large.as_dict()["run_to_run"]
    assert found["low_s"] == pytest.approx(large.seconds * found["low"])
    assert found["low_s"] < large.seconds < found["high_s"]


def test_a_band_around_a_median_and_its_words() -> None:
    band = Band("a job", 64, 1200, 0.9, 1.25)
    assert band.around(2.0) == (1.8, 2.5)
    assert_names(band.words, "1,200", "a job", "64")


@pytest.mark.parametrize(("key", "value"), [("low", "1.1"), ("high", "0.9")])
def test_the_median_lies_in_its_band(key: str, value: str) -> None:
    with pytest.raises(MachineError, match=f"{key} = "):
        with_settings("frontier", {f"run_to_run.step.{key}": value})


def test_a_band_is_in_the_file_of_a_machine_that_is_written() -> None:
    written = machine_to_dict(load_machine("frontier"))["run_to_run"]["step"]
    assert written["runs"]["value"] == 102
