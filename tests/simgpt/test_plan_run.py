"""`simgpt plan-run`: what it answers, what it refuses, and its calendar in a report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import simgpt as api
from simgpt.calendars.planned import _run
from simulator.goodput.saves import SaveTimes
from tests.messages import assert_names
from tests.simgpt.face import assert_golden, simgpt

ASK = (
    *("plan-run", "gpt-5b", "-m", "frontier", "-n", "512", "--batch", "512", "--tokens", "100B"),
    *("--plan", "z=16,dp=rest", "--start", "2026-01-01", "--draws", "400"),
)
CHAIN = (*ASK, "--mtbf", "40d", "--walltime", "12h", "--queue-wait", "2h")


def record(*words: str) -> dict[str, Any]:
    said = simgpt(*words, "--json")
    assert said.status == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def test_the_answer_reads_as_its_golden_file() -> None:
    said = simgpt(*CHAIN)
    assert (said.status, said.err) == (0, "")
    assert_golden("plan-run.txt", said.out)


def test_without_failures_and_queues_a_run_is_its_steps_and_its_saves() -> None:
    found = record(*ASK, "--mtbf", "11000000d", "--restart", "0s", "--save-every", "1h")
    step = record("predict", *ASK[1:8], *ASK[10:12])
    assert found["steps"] == -(-100_000_000_000 // (512 * 2048))
    assert found["mean_step_s"] == step["step_s"]
    assert found["work_s"] == pytest.approx(found["steps"] * step["step_s"])
    saves = found["work_s"] / found["interval"]["interval_s"]
    over = found["expected_s"] - found["work_s"] - found["checkpoint"]["read_s"]
    assert over == pytest.approx(saves * found["checkpoint"]["write_s"], rel=0.06)
    assert found["low_s"] < found["median_s"] < found["high_s"]


def test_saves_are_bytes_of_the_program_over_the_file_system() -> None:
    found = record(*ASK, "--mtbf", "400d", "--storage", "10 GB/s:20 GB/s", "--async-save")
    of = found["checkpoint"]
    whole = of["parameter_bytes"] + of["state_bytes"]
    assert whole == pytest.approx(14 * 5_047_558_144, rel=0.02)
    assert of["write_s"] == pytest.approx(whole / 10e9)
    assert of["read_s"] == pytest.approx(of["held_bytes"] / 20e9)
    assert of["stall_s"] == pytest.approx(whole / 512 / 36e9)


def test_the_machine_s_file_says_how_often_nodes_fail_and_mtbf_says_otherwise() -> None:
    ask = (
        *("plan-run", "tiny-1m", "-m", "dgx-h100", "--plan", "dp=16", "--batch", "16"),
        *("--tokens", "1T", "--save-time", "1s", "--draws", "20", "--start", "2026-01-01"),
    )
    per_s = record(*ask)["node_failures_per_s"]
    assert per_s == pytest.approx(3.79 / 1000 / 86_400)
    assert record(*ask, "--mtbf", "10d")["node_failures_per_s"] == pytest.approx(1 / 864_000)
    key = "reliability.failures_per_1000_node_days=7.58"
    assert record(*ask, "--set", key)["node_failures_per_s"] == pytest.approx(2 * per_s)


def test_the_first_number_of_nodes_to_finish_is_the_answer() -> None:
    words = [word for word in CHAIN if word not in ("-n", "512")]
    at = words.index("--batch") + 1
    words.insert(at, "512")
    found = record(*words, "--nodes", "8,64,16,7")
    assert [row["nodes"] for row in found["compared"]] == [8, 64, 16, 7]
    ends = {row["nodes"]: row["median_s"] for row in found["compared"]}
    assert found["nodes"] == 64
    assert ends[64] < ends[16] < ends[8]
    assert ends[7] is None
    assert found["compared"][-1]["reason"]


def test_noise_lengthens_the_mean_step() -> None:
    quiet = record(*CHAIN)
    noisy = record(*CHAIN, "--noise", "5%", "--samples", "3")
    assert noisy["mean_step_s"] > quiet["mean_step_s"]


REFUSED = {
    ("--mtbf", "400"): "--mtbf 400 90s 30min 12h 2d",
    ("--storage", "2 TB"): "--storage TB GB/s",
    ("--walltime", "12h"): "--walltime --queue-wait",
    ("--spares", "2"): "--spares --repair",
    ("--repair", "1d"): "--repair --spares",
    ("--save-every", "1s", "--mtbf", "9d"): "--save-every 1.02",
    ("--nodes", "8"): "--nodes -n",
    (): "frontier --mtbf 400d reliability.failures_per_1000_node_days",
    ("--mtbf", "1min"): "1%",
    ("--mtbf", "9d", "--storage", "1 KB/s"): "1% 19,629.4",
    ("--mtbf", "9d", "--walltime", "1min", "--queue-wait", "1h"): "60 603",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_refused_in_one_sentence(words: tuple[str, ...]) -> None:
    said = simgpt(*ASK, *words)
    assert said.status == 2
    assert said.err.count("\n") == 1
    assert_names(said.err, *REFUSED[words].split())


@pytest.mark.parametrize(
    ("step_s", "least_s", "given_s", "found_s"),
    [(1.0, 1.4, 1.4, 2.0), (1.0, 1.4, 3.4, 3.0), (1.0, 0.5, 1.4, 1.0), (0.1, 1.1, 1.1, 1.1)],
)
def test_a_save_is_after_whole_steps_the_last_of_which_it_is_through_before(
    step_s: float, least_s: float, given_s: float, found_s: float
) -> None:
    """1.1 is 11 steps of 0.1, though it is 11.000000000000002 of them in floating point."""
    how = dict.fromkeys(("walltime", "spares", "restart", "detection")) | {"save_every": given_s}
    run = _run(how, SaveTimes(least_s, 0.0, 1.0, "a test"), 1e4, step_s, 1e-6)
    assert run.interval_s == pytest.approx(found_s)


def test_a_machine_without_a_file_system_asks_for_one() -> None:
    said = simgpt("plan-run", "tiny-1m", "-m", "dgx-h100", "--plan", "dp=8", "--batch", "8",
                  "--tokens", "1B")  # fmt: skip
    assert said.status == 2
    assert_names(said.err, "dgx-h100", "--storage '2 TB/s'", "--save-time 60s", "storage.write")


def test_a_plan_that_does_not_fit_is_answered_and_ends_with_three() -> None:
    other = {"z=16,dp=rest": "dp=rest", "512": "8", "100B": "1B"}
    words = [other.get(word, word) for word in CHAIN]
    said = simgpt(*words, "--json")
    assert said.status == 3
    assert json.loads(said.out)["end"] >= "2026-01-01"
    assert_names(said.err, "39.80 GiB")


def test_settings_of_runs_change_no_step_and_predict_says_so() -> None:
    said = simgpt("predict", "tiny-1m", "-m", "frontier", "--plan", "dp=8", "--batch", "8",
                  "--set", "storage.write=1 GB/s")  # fmt: skip
    assert said.status == 0
    assert_names(said.err, "storage.write", "simgpt plan-run")


@pytest.mark.slow
def test_a_report_draws_the_calendar(tmp_path: Path) -> None:
    answer, page = tmp_path / "run.json", tmp_path / "page.html"
    assert simgpt(*CHAIN, "-o", str(answer), "--json").status == 0
    said = simgpt("report", str(answer), "-o", str(page), "--figures", str(tmp_path / "figures"))
    assert said.status == 0
    text = page.read_text(encoding="utf-8")
    found = json.loads(answer.read_text(encoding="utf-8"))
    (question,) = re.findall(r"<h1>(.*?)</h1>", text)
    assert_names(question, "gpt-5b", "64", "frontier")
    assert found["end"] in text
    assert found["low_end"] in text
    assert f"{found['calendar']['failures']} failure" in text
    assert (tmp_path / "figures" / "calendar-1.png").exists()


def test_a_calendar_that_is_none_is_refused(tmp_path: Path) -> None:
    found = record(*CHAIN)
    for key, value in (("progress", [["a", 1], [2, 3]]), ("failures_s", "none")):
        damaged = {**found, "calendar": {**found["calendar"], key: value}}
        path = tmp_path / "run.json"
        path.write_text(json.dumps(damaged), encoding="utf-8")
        said = simgpt("report", str(path), "-o", str(tmp_path / "page.html"))
        assert said.status == 2
        assert key in said.err


def test_python_has_the_run_with_its_calendar() -> None:
    found = api.plan_run(
        "gpt-5b", "frontier", "z=16,dp=rest", devices=512, batch=512,
        tokens="100B", mtbf="40d", start="2026-01-01", draws=100,
    )  # fmt: skip
    assert found.start == "2026-01-01" < found.range[0] <= found.end <= found.range[1]
    assert 0.5 < found.effective_share < 1
    assert found.plot().get_axes()[0].get_ylabel() == "training done, %"
