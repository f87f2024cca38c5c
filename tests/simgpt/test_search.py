"""`simgpt search`: what it says, in words and in JSON, and when it is stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simgpt.interrupts import ASKED
from simulator import search as searching
from simulator.search import Progress
from tests.messages import assert_names
from tests.simgpt.face import assert_golden, simgpt
from topologies.machine import machine_to_dict
from topologies.machine_files import load_machine
from workload.splits.plan_values import ALONE, COUNTS

SEARCH = (
    *("search", "gpt-5b", "-m", "perlmutter", "-n", "64", "--batch", "64", "--stack", "simgpt"),
    *("--plan", "pp=1,y=1,mbs=1,overlap=all", "--workers", "1"),
)


NARROW = (*SEARCH[:10], "--plan", f"{SEARCH[11]},recompute=full,order=tp-dp-pp", *SEARCH[12:])
TINY = ("tiny-1m", "-m", "perlmutter", "-n", "8", "--batch", "8", "--stack", "simgpt")
FEW = "pp=1,y=1,zero=1,mbs=1,overlap=all,order=tp-dp-pp"
QUICK = ("search", *TINY, "--plan", f"{FEW},recompute=full", "--workers", "1")
# All of them are quick where a search ends before it has found anything.
ONE_QUICK = (ASKED[0], *(pytest.param(number, marks=pytest.mark.slow) for number in ASKED[1:]))


@pytest.mark.slow
def test_a_search_reads_as_its_golden_file() -> None:
    said = simgpt(*SEARCH, "--memory-front", "--also-devices", "32,128")
    assert said.status == 0
    assert_golden("search.txt", said.out)


@pytest.mark.parametrize(
    ("asked", "golden"),
    [
        (NARROW, "search-energy-narrow.txt"),
        pytest.param(SEARCH, "search-energy.txt", marks=pytest.mark.slow),
    ],
)
def test_the_plan_with_least_energy_reads_as_its_golden_file(
    asked: tuple[str, ...], golden: str
) -> None:
    said = simgpt(*asked, "--objective", "energy", "--top", "2")
    assert said.status == 0
    assert_golden(golden, said.out)


def test_axonns_ranking_reads_as_its_golden_file() -> None:
    said = simgpt(*SEARCH[:-2], "--rank-by", "axonn", "--top", "4")
    assert (said.status, said.err) == (0, "")
    assert_golden("search-axonn.txt", said.out)


def test_axonns_ranking_says_what_was_asked_in_json() -> None:
    words = ("--rank-by", "axonn", "--json", "--set", "network.background=0.1")
    answer = json.loads(simgpt(*QUICK[:-4], *words).out)
    assert answer["placement"] == {"policy": "scheduler"}
    assert "network.background" in answer["settings"]
    assert {"model", "machine", "devices", "batch", "kendall_tau", "plans"} <= answer.keys()


def test_the_first_grid_of_axonns_ranking_stands_alone() -> None:
    words = ("--rank-by", "axonn", "--top", "1")
    said = simgpt(*QUICK[:-4], *words)
    assert said.out.count("recompute=full") == 1
    assert "Kendall" not in said.out
    answer = json.loads(simgpt(*QUICK[:-4], *words, "--json").out)
    assert (len(answer["plans"]), answer["kendall_tau"]) == (1, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plan.toml", 'pipe = 1\nx = 2\ndata = "rest"\noverlap = "all"\nrecompute = "full"\n'),
        pytest.param(
            "plan.json",
            '{"pipe": 1, "x": 2, "overlap": "all", "recompute": "full"}',
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_keys_of_a_plans_file_are_kept(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    fixed = "mbs=1,overlap=all,zero=1,y=1,recompute=full,order=tp-dp-pp"
    words = ("search", *TINY, "--workers", "1")
    found = json.loads(simgpt(*words, "--plan", str(tmp_path / name), "--gap", "90%", "--json").out)
    assert {(plan["plan"]["pp"], plan["plan"]["tp"]) for plan in found["plans"]} == {(1, 2)}
    counted = json.loads(simgpt(*words, "--plan", f"pp=1,tp=2,{fixed}", "--json").out)
    assert counted["plans_considered"] < found["plans_considered"]


@pytest.mark.parametrize(
    "asked", [QUICK, *(pytest.param(words, marks=pytest.mark.slow) for words in (NARROW, SEARCH))]
)
def test_the_plans_found_can_be_pasted_into_predict(asked: tuple[str, ...]) -> None:
    said = simgpt(*asked, "--json")
    answer = json.loads(said.out)
    assert answer["optimal"] is True
    assert answer["gap"] == 0
    assert 0 < answer["plans_fitting"] <= answer["plans_considered"]
    assert [plan["step_s"] for plan in answer["plans"]] == sorted(
        plan["step_s"] for plan in answer["plans"]
    )
    for plan in answer["plans"]:
        told = simgpt("predict", *asked[1:10], "--plan", plan["plan_string"], "--json")
        assert json.loads(told.out)["step_s"] == plan["step_s"]


@pytest.mark.slow
def test_the_same_search_gives_the_same_bytes_whoever_works_on_it_and_however_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even as many processes as it has is no matter, but to the command line that is kept."""
    monkeypatch.setattr("simgpt.invocation.command_line", lambda: "simgpt search")
    monkeypatch.setattr(
        "simulator.search.branch_and_bound.WORTH", 1
    )  # all of it is for the processes
    once, again, two = (
        simgpt(*SEARCH[:-1], workers, "--top", "5", "--json").out for workers in ("1", "1", "2")
    )
    assert once == again == two
    assert len(json.loads(once)["plans"]) == 5


def test_a_search_that_is_stopped_says_how_far_off_it_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time is over once a plan is found."""
    ended_when(monkeypatch, lambda _, state: bool(state.found), lambda: time.sleep(2))
    said = simgpt(*QUICK, "--time-limit", "1", "--json")
    assert (said.status, said.err) == (0, "")
    answer = json.loads(said.out)
    assert answer["optimal"] is False
    assert 0 < answer["gap"] <= 1


def ended_when(
    patch: pytest.MonkeyPatch, is_time: Callable[[int, Progress], bool], end: Callable[[], object]
) -> None:
    """Have searches meet their end in the midst of a step: the numbered one, in such a state."""
    begun, search = [0], searching.search

    def meeting_its_end(*words: Any, **how: Any) -> Iterator[Progress]:
        begun[0] += 1
        number = begun[0]
        for state in search(*words, **how):
            yield state
            if is_time(number, state):
                end()

    patch.setattr(searching, "search", meeting_its_end)


@pytest.mark.parametrize("number", ONE_QUICK)
def test_a_signal_ends_a_search_with_the_best_so_far(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_when(monkeypatch, lambda _, state: bool(state.found), lambda: signal.raise_signal(number))
    said = simgpt(*QUICK)
    assert (said.status, said.err) == (0, "")
    assert "zero=1" in said.out
    assert re.search(r"\d %", said.out)  # how far off it may be


@pytest.mark.slow
@pytest.mark.parametrize("number", ONE_QUICK)
def test_a_signal_to_all_processes_ends_the_first_phase_with_one_answer(
    number: signal.Signals,
) -> None:
    words = ("search", "gpt-80b", "-m", "frontier", "-n", "8192", "--batch", "8192")
    # By then usual plans are simulated, and nothing is bounded.
    begun = subprocess.Popen(
        [sys.executable, "-m", "simgpt", *words, "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while max(map(cpu_s, processes_of(begun.pid)), default=0.0) < 1.6:  # in their first phase
        time.sleep(0.05)
    os.killpg(begun.pid, number)
    out, err = begun.communicate(timeout=120)
    assert err == ""
    assert_names(out, "family", "which may be better")
    assert begun.returncode == 0


def cpu_s(pid: str) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


def processes_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()


@pytest.mark.parametrize("number", ASKED)
def test_a_signal_before_any_plan_is_found_is_the_exit_status(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_when(monkeypatch, lambda *_: True, lambda: signal.raise_signal(number))
    said = simgpt(*QUICK)
    assert said.status == 128 + number
    assert number.name in said.err
    assert said.err.count("\n") == 1
    assert "tp=" not in said.out


@pytest.mark.slow
def test_a_search_without_a_plan_in_time_is_told_from_one_that_no_plan_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fits = simgpt("search", "gpt-5b", "-m", "frontier", "-n", "1", "--batch", "1", "--json")
    assert (fits.status, json.loads(fits.out)["plans"], fits.err) == (3, [], "")
    ended_when(monkeypatch, lambda *_: True, lambda: time.sleep(2))
    said = simgpt(*QUICK, "--time-limit", "1", "--json")
    assert (said.status, json.loads(said.out)["plans"]) == (5, [])
    assert "1 s" in said.err
    assert said.err.count("\n") == 1


def test_a_closed_terminal_that_nobody_is_to_hear_of_ends_no_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `nohup` starts it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ended_when(
            monkeypatch,
            lambda _, state: bool(state.found),
            lambda: signal.raise_signal(signal.SIGHUP),
        )
        said = simgpt(*QUICK, "--json")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (said.status, json.loads(said.out)["optimal"]) == (0, True)


@pytest.mark.slow
def test_the_time_limit_ends_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of the search that would not end within this test's own time."""
    under_way: list[str] = []

    def endless() -> None:
        under_way.append("begun")
        time.sleep(3600)
        under_way.append("ended")

    ended_when(monkeypatch, lambda _, state: bool(state.found), endless)
    said = simgpt(*SEARCH, "--time-limit", "20")
    assert (said.status, under_way) == (0, ["begun"])
    assert re.search(r"\d %", said.out)


@pytest.mark.slow
def test_stopped_on_a_front_a_search_answers_with_what_is_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = json.loads(simgpt(*SEARCH, "--top", "1", "--memory-front", "--json").out)
    ended_when(
        monkeypatch,
        lambda number, state: number == 3 and bool(state.found),
        lambda: signal.raise_signal(signal.SIGINT),
    )
    said = simgpt(*SEARCH, "--top", "1", "--memory-front", "--also-devices", "32,128", "--json")
    answer = json.loads(said.out)
    assert (said.status, answer["optimal"]) == (0, True)
    assert len(whole["memory_front"]) > 2
    assert answer["memory_front"] == whole["memory_front"][:2]
    assert [plan["devices"] for plan in answer["devices_front"]] == [64]
    _, *devices = said.err.splitlines()  # after the front of memory
    assert len(devices) == 2
    assert_names(devices[0], "32")
    assert_names(devices[1], "128")


def test_a_search_may_end_at_a_gap() -> None:
    said = simgpt("search", *TINY, "--plan", FEW, "--workers", "1", "--gap", "10%", "--json")
    answer = json.loads(said.out)
    assert (said.status, answer["optimal"]) == (0, False)
    assert 0 < answer["gap"] <= 0.1
    assert answer["plans"][0]["step_s"] * (1 - answer["gap"]) == pytest.approx(answer["bound"])
    assert_names(answer["certificate"], "10.0 %")


def test_other_numbers_of_devices_that_cannot_be_are_left_out_with_a_word() -> None:
    said = simgpt(*QUICK, "--top", "1", "--also-devices", "7", "--json")
    answer = json.loads(said.out)
    assert (said.status, len(answer["devices_front"])) == (0, 1)
    assert_names(said.err, "7", "tiny-1m")


@pytest.mark.slow
def test_plans_without_times_are_counted_and_named_beside_the_best_of_the_others(
    tmp_path: Path,
) -> None:
    document = machine_to_dict(load_machine("perlmutter"))
    rows = [(ranks, nbytes, nbytes / 1e10) for ranks in (2.0, 4.0) for nbytes in (1e3, 1e8)]
    table = {"columns": ("ranks", "bytes", "seconds"), "rows": rows}
    document["profile"] = {"collectives": {"all_reduce": table}}
    machine = tmp_path / "few.json"
    machine.write_text(json.dumps(document))
    words = ("search", *TINY[:2], str(machine), *TINY[3:], "--workers", "1")
    fixed = "pp=1,y=1,zero=0,mbs=1,overlap=all,recompute=full,order=tp-dp-pp"
    answer = json.loads(simgpt(*words, "--plan", fixed, "--json").out)
    assert answer["optimal"] is True
    assert 0 < answer["plans_unpredicted"] < answer["plans_fitting"]
    reason = answer["unpredicted_reason"]
    assert_names(reason, "all_reduce", "8", "2", "4")
    assert_names(answer["certificate"], reason)
    assert_names(simgpt(*words, "--plan", fixed).out, reason)
    said = simgpt(*words, "--plan", "dp=8")
    assert (said.status, said.out) == (2, "")
    assert_names(said.err, reason)


@pytest.mark.parametrize(
    ("model", "devices", "enough"),
    [("gpt-5b", "1", 4), pytest.param("gpt-640b", "4", 512, marks=pytest.mark.slow)],
)
def test_a_search_without_room_for_any_plan_ends_with_status_3(
    model: str, devices: str, enough: int
) -> None:
    said = simgpt("search", model, "-m", "perlmutter", "-n", devices, "--batch", devices)
    assert said.status == 3
    assert_names(said.out, "GiB", f"{enough} devices")


@pytest.mark.parametrize(
    ("status", "words", "named"),
    [
        (2, "", "--batch"),
        (3, "--batch 8 --plan stage_layers=1+2", "stage_layers"),
        (2, "--batch 8 --plan batch=16", "batch"),
        (2, "--batch 8 --plan zeor=1", "zeor zero"),
        (2, "--batch 8 --plan zero=5", "zero=5 0 3"),
        (2, "--batch 8 --rank-by axonn --memory-front", "--rank-by --memory-front"),
        (2, "--batch 8 --rank-by axonn --workers 2", "--rank-by --workers"),
        (2, "--batch 8 --exhaustive --workers 2", "--exhaustive --workers"),
        (2, "--batch 8 --gap 2", "--gap 2 2% 0.02"),
        (2, "--batch 8 --gap x%", "--gap x%"),
        (2, "--batch 8 --rank-by axonn --gap 2%", "--rank-by --gap"),
        (2, "--batch 8 --rank-by axonn --plan pp=2", "AxoNN"),
        (2, "--batch 8 --rank-by axonn --plan zero=1", "AxoNN zero=1"),
        (2, "--batch 8 --plan no-such.toml", "no-such.toml"),
        (2, "--batch 8 --plan z=0", "z=0 1"),
        (2, "--batch 8 --plan pp=2,vpp=0", "vpp=0 1"),
        (2, "--batch 8 --plan precision=fp4", "precision=fp4 bf16 recipe="),
        (3, "--batch 8 --plan overlap=shared+a2a", "gpt-5b 8 overlap=a2a"),
        (2, "--batch 8 --also-devices 8,x", "--also-devices 8,x"),
        (2, "--batch 8 --top 0", "--top 0"),
        (3, "--batch 7 --plan pp=1,tp=1,y=1", "gpt-5b 8 7"),
        (3, "--batch 8 --plan tp=3", "gpt-5b 8 1, 2, 4,"),
    ],
)
def test_a_search_that_cannot_be_says_why(status: int, words: str, named: str) -> None:
    said = simgpt("search", "gpt-5b", "-m", "frontier", "-n", "8", *words.split())
    assert (said.status, said.out) == (status, "")
    assert_names(said.err, *named.split())
    assert len(said.err.strip().splitlines()) == 1


@pytest.mark.parametrize("key", sorted({*ALONE} - {"recompute", "batch"}))
def test_a_search_refuses_a_value_that_no_plan_has_also_where_no_plan_uses_the_devices(
    key: str,
) -> None:
    word = "-1" if key in COUNTS else "9" if key == "zero" else "no-such"
    asks = ["search", "tiny-2m", "-m", "frontier", "-n", "7", "--batch", "16"]
    said = simgpt(*asks, "--plan", f"{key}={word}")
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith(f"simgpt: {key}={word} ")
    assert " devices" not in said.err


@pytest.mark.slow
def test_the_front_of_devices_is_of_time_whatever_the_search_is_for() -> None:
    asks = ("search", "gpt-5b", "-m", "perlmutter", "-n", "16", "--batch", "16", "--workers", "1")
    fixed = "pp=1,tp=1,y=1,zero=2,overlap=all,recompute=full,order=tp-dp-pp"
    words = ("--plan", fixed, "--also-devices", "8", "--top", "1", "--json")
    fast, cheap = (
        json.loads(simgpt(*asks, *words, "--objective", objective).out)
        for objective in ("time", "energy")
    )
    assert cheap["plans"] != fast["plans"]
    assert cheap["devices_front"] == fast["devices_front"]


@pytest.mark.slow
def test_a_search_under_a_stack_finds_what_predict_under_it_predicts() -> None:
    words = ("gpt-5b", "-m", "dgx-h100", "-n", "16", "--batch", "16", "--stack", "megatron-core")
    fixed = ("--plan", "mbs=1,recompute=none,order=tp-dp-pp", "--workers", "1")
    answer = json.loads(simgpt("search", *words, *fixed, "--json").out)
    assert (answer["stack"], answer["optimal"]) == ("megatron-core", True)
    for plan in answer["plans"]:
        told = json.loads(simgpt("predict", *words, "--plan", plan["plan_string"], "--json").out)
        assert (told["step_s"], told["plan"]) == (plan["step_s"], plan["plan"])
    said = simgpt("search", *words, *fixed)
    assert "stack megatron-core (Megatron-Core)" in said.out


@pytest.mark.parametrize(
    ("model", "words", "why"),
    [
        ("tiny-1m", "--stack simgpt --plan pp=2,tp=1,y=1,z=1,recompute=full:1", "recompute=full:1"),
        ("tiny-1m", "--stack simgpt --plan pp=2,y=1,z=1,schedule=zb-v", "schedule=zb-v"),
        (
            "tiny-1m",
            "--stack simgpt --plan tp=1,y=1,z=1,pp=1,optimizer=lomo,zero=0",
            "optimizer=lomo",
        ),
        ("tiny-1m", "--stack simgpt --plan tp=1,y=1,z=1,matmul_forms=tuned", "matmul_forms=tuned"),
        (
            "tiny-1m",
            "--stack simgpt --plan tp=1,y=1,z=1,pp=2,ends_as_layers=true",
            "ends_as_layers=true",
        ),
        ("tiny-1m", "--stack megatron-lm-zero-bubble --plan tp=1", "ends_as_layers"),
        pytest.param(
            "nemotron-h-8b", "--stack megatron-core", "layers in a pattern", marks=pytest.mark.slow
        ),
    ],
)
def test_what_has_no_bounds_is_searched_around_the_usual_plans(
    model: str, words: str, why: str
) -> None:
    asked = (model, "-m", "dgx-h100", "-n", "8", "--batch", "16", "--workers", "1")
    said = simgpt("search", *asked, *words.split(), "--json")
    assert said.status == 0, said.err
    found = json.loads(said.out)
    assert_names(found["unproved"], *why.split())
    assert_names(found["certificate"], "not proved", why.split(maxsplit=1)[0])
    assert (found["optimal"], found["gap"]) == (False, 1)
    fixed = [word for word in words.split() if "=" in word]
    for plan in found["plans"]:
        for pair in fixed[0].split(",") if fixed else ():
            assert pair in plan["plan_string"] or pair.endswith(("=1", "=0"))
        stack = ("--stack", found["stack"], "--plan", plan["plan_string"])
        told = simgpt("predict", *asked[:7], *stack, "--json")
        assert json.loads(told.out)["step_s"] == plan["step_s"]


@pytest.mark.parametrize("precision", ["fp8", "bf16+fp8"])
def test_the_fp8_of_a_stack_is_searched_alone_and_beside_other_precisions(precision: str) -> None:
    asked = ("tiny-1m", "-m", "dgx-h100", "-n", "8", "--batch", "16", "--stack", "nemo")
    plan = ("--plan", f"pp=1,precision={precision}", "--workers", "1")
    found = json.loads(simgpt("search", *asked, *plan, "--json").out)
    assert (found["unproved"], found["optimal"]) == (None, True)
    assert found["asked"]["fp8"] is (precision == "fp8")
    for plan in found["plans"]:
        assert plan.get("fp8", False) is plan["plan_string"].endswith(",precision=fp8")
        told = simgpt("predict", *asked, "--plan", plan["plan_string"], "--json")
        assert json.loads(told.out)["step_s"] == plan["step_s"]
    assert precision != "fp8" or all(plan["fp8"] for plan in found["plans"])


def test_where_the_range_of_the_best_plan_comes_from_stands_below_the_table() -> None:
    text = " ".join(simgpt(*QUICK, "--top", "2").out.split())
    assert text.count("8 a100") == 1  # such as no published run is like
    assert text.index("fastest plan: ") < text.index("8 a100")
