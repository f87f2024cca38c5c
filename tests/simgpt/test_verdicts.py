"""Verdicts on memory as commands say them: on devices that are just too small, and ample ones."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import simgpt as api
from tests.messages import assert_names, names
from tests.simgpt.face import simgpt
from topologies.errors import SimgptError

ASKED = ("gpt-5b", "-m", "perlmutter", "-n", "8", "--batch", "16")
PLAN = ("--plan", "z=8,mbs=1")
SEARCHED: dict[str, Any] = {
    **{"model": "gpt-5b", "machine": "perlmutter", "devices": 8, "batch": 16, "top": 1},
    "plan": "pp=1,tp=1,y=1,zero=1,mbs=1,overlap=all,order=tp-dp-pp",
}
ANCHOR = """
model = "gpt-5b"
machine = "perlmutter"
devices = 8
batch = 16
plan = "z=8,mbs=1"
[measured]
step = "3 s"
"""


def predicted(*more: str) -> tuple[int, dict[str, Any], str]:
    said = simgpt("predict", *ASKED, *PLAN, *more, "--json")
    return said.status, json.loads(said.out), said.err


def with_memory(verdict: str) -> tuple[str, str]:
    """Devices of which the verdict on the plan's memory is that."""
    memory = predicted()[1]["memory"]
    peaks = {
        "fits": memory["sure_bytes"] / 1.02,
        "tight": (memory["sure_bytes"] + memory["most_bytes"]) / 2,
        "does not fit": memory["most_bytes"] * 1.02,
    }
    capacity = memory["capacity_bytes"] * memory["peak_bytes"] / peaks[verdict]
    return "--set", f"device.memory={capacity + memory['reserve_bytes']:.0f} B"


@pytest.mark.parametrize(
    ("verdict", "fits", "status"),
    [("fits", True, 0), ("tight", True, 0), ("does not fit", False, 3)],
)
def test_only_what_does_not_fit_ends_with_status_3(verdict: str, fits: bool, status: int) -> None:
    found, record, said = predicted(*with_memory(verdict))
    memory = record["memory"]
    assert (found, memory["verdict"], memory["fits"]) == (status, verdict, fits)
    assert memory["sure_bytes"] < memory["most_bytes"]
    assert (verdict in said) is (verdict != "fits")
    assert bool(record["remedy"]) is (verdict != "fits")
    if verdict == "tight":
        assert 0.1 < memory["p_fits"] < 0.9
        assert_names(said, f"{round(10 * memory['p_fits'])}0 %")


def test_a_row_of_a_sweep_that_is_tight_is_ok_and_says_so() -> None:
    _, memory = with_memory("tight")
    said = simgpt("predict", *ASKED, *PLAN, "--set", memory, "--sweep", "batch=16,32")
    assert said.status == 0
    assert "tight" in said.out


@pytest.mark.usefixtures("few_numbers")
@pytest.mark.parametrize(
    "words",
    [
        ("sbatch", "--steps", "10"),
        ("plan-run", "--tokens", "1B", "--mtbf", "400d"),
        pytest.param(("why",), marks=pytest.mark.slow),
    ],
)
def test_every_command_answers_a_tight_plan_and_says_so(words: tuple[str, ...]) -> None:
    command, *more = words
    said = simgpt(command, *ASKED, *PLAN, *with_memory("tight"), *more)
    assert said.status == 0, said.err
    assert re.search(r"tight\b.*\b\d0 % likely", " ".join(said.out.split()))


def test_a_search_takes_plans_that_fit_with_the_probability_that_is_asked_for() -> None:
    found = {p: api.search(**SEARCHED, fits=p) for p in (0.3, 0.9, 0.97)}
    rooms = [each.to_dict()["room_bytes"] for each in found.values()]
    assert rooms == sorted(rooms, reverse=True)
    assert rooms[0] > rooms[-1]
    steps = [each.best.step_s for each in found.values() if each.best]
    assert steps == sorted(steps)
    for p, each in found.items():
        assert each.best is not None
        assert each.best.p_fits >= p - 1e-6


@pytest.mark.parametrize("p", [0.0, 0.999])
def test_a_probability_that_no_peaks_tell_is_refused(p: float) -> None:
    with pytest.raises(SimgptError, check=names("0.01", "0.99")):
        api.search("gpt-5b", "perlmutter", devices=8, batch=64, fits=p)


@pytest.mark.parametrize(("measure", "key"), [("allocated", "factor"), ("reserved", "beside")])
def test_a_measured_peak_comes_back_for_its_own_question(
    tmp_path: Any, measure: str, key: str
) -> None:
    """A tenth more than predicted: of tensors, or beside them."""
    _, blind, _ = predicted()
    memory = blind["memory"]
    more = memory["peak_bytes"] // 10
    told = memory["peak_bytes"] + memory["library_bytes"] + more
    file = tmp_path / "mine.toml"
    file.write_text(f'{ANCHOR}peak = "{told} B"\npeak_of = "{measure}"\n')
    _, record, _ = predicted("--anchor", str(file))
    after, by = record["memory"], record["anchor"]["memory"]
    grown = after["peak_bytes"] - memory["peak_bytes"]
    less = memory["capacity_bytes"] - after["capacity_bytes"]
    assert (grown, less) == pytest.approx((more, 0) if key == "factor" else (0, more), abs=1000)
    assert by["weight"] == 1
    assert [each["anchor"] for each in by["peaks"]] == [str(file)]
    assert after["most_bytes"] / after["sure_bytes"] < memory["most_bytes"] / memory["sure_bytes"]


def test_a_search_leaves_room_for_what_an_anchor_found_beside_tensors(tmp_path: Any) -> None:
    _, blind, _ = predicted()
    told = blind["memory"]["peak_bytes"] + 4 * 2**30
    file = tmp_path / "mine.toml"
    file.write_text(f'{ANCHOR}peak = "{told} B"\npeak_of = "reserved"\n')
    found = api.search(**SEARCHED, anchor=str(file))
    best = found.best
    assert best is not None
    memory = best.memory
    assert memory["capacity_bytes"] == blind["memory"]["capacity_bytes"] - 4 * 2**30
    assert memory["peak_bytes"] <= found.to_dict()["room_bytes"] == memory["sure_bytes"]
    assert best.verdict == "fits"
