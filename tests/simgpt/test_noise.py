"""`simgpt predict|why --noise …`: what steps with noise say, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.messages import assert_names
from tests.simgpt.face import simgpt
from topologies.machine import machine_to_dict
from topologies.machine_files import load_machine

PLAN = ("--plan", "z=2,dp=4", "--batch", "16")
PREDICT = ("predict", "tiny-1m", "-m", "frontier", *PLAN)
NOISE = ("--noise", "5%", "--slow", "10%:20%", "--spread", "3%")


def answered(*words: str) -> dict[str, Any]:
    said = simgpt(*words, "--json")
    assert said.status == 0, said.err
    record: dict[str, Any] = json.loads(said.out)
    return record


def test_the_answer_has_what_was_asked_for() -> None:
    record = answered(*PREDICT, *NOISE, "--samples", "20", "--seed", "4")
    found = record["variability"]
    noise = {"jitter": 0.05, "slow_share": 0.1, "slow_by": 0.2, "spread": 0.03}
    assert (found["noise"], found["seed"], found["samples"]) == (noise, 4, 20)
    assert found["noise_free_step_s"] == record["step_s"]
    low, high = found["interval_step_s"]
    assert min(found["steps_s"]) <= low < found["median_step_s"] < high <= max(found["steps_s"])
    mean = sum(found["steps_s"]) / 20
    assert found["mean_cost"] == pytest.approx(mean / record["step_s"] - 1)
    assert sum(found["excess_s"].values()) == pytest.approx(mean - record["step_s"])
    slow = found["one_slow_device"]
    assert slow["slower_by"] == 0.2
    assert 0 < slow["cost"] <= 0.2
    assert slow["cost"] == pytest.approx(slow["step_s"] / record["step_s"] - 1)
    waits = {key: found["excess_s"][key] for key in ("z", "z+dp")}
    assert found["amplifier"] == max(waits, key=lambda key: waits[key])


def test_the_same_seed_gives_the_same_answer_and_another_another() -> None:
    one, two, other = (
        answered(*PREDICT, *NOISE, "--samples", "5", "--seed", seed)["variability"]
        for seed in ("1", "1", "2")
    )
    assert one == two
    assert not set(one["steps_s"]) & set(other["steps_s"])


def test_thirty_steps_are_drawn_and_a_device_is_a_tenth_slower_where_nothing_else_is_said() -> None:
    found = answered(*PREDICT, "--noise", "1%")["variability"]
    assert (found["samples"], found["seed"]) == (30, 0)
    assert found["one_slow_device"]["slower_by"] == 0.1


def test_no_noise_is_the_prediction() -> None:
    record = answered(*PREDICT, "--noise", "0%", "--samples", "3")
    found = record["variability"]
    assert found["steps_s"] == [record["step_s"]] * 3
    assert found["amplifier"] is None
    said = simgpt(*PREDICT, "--noise", "0%", "--samples", "3")
    assert_names(said.out, "+0.00 %")
    assert "".join(said.out.splitlines()[-8:]).count("─") == 0  # no table of what is added


def test_rounding_is_no_excess() -> None:
    """Sums of clocks over 16 ranks and three stages are not exact to the last bit."""
    words = "predict gpt-5b -m frontier -n 48 --plan tp=2,dp=rest,pp=3 --batch 56 --noise 0%"
    found = json.loads(simgpt(*words.split(), "--samples", "7", "--json").out)["variability"]
    assert found["amplifier"] is None
    assert set(found["excess_s"].values()) == {0.0}


def test_an_answer_without_noise_says_nothing_of_it() -> None:
    assert "variability" not in answered(*PREDICT)


@pytest.mark.parametrize("plan", ["tuned", "pp"])
def test_plans_of_all_sorts_are_served(plan: str) -> None:
    texts = {"tuned": "z=2,dp=4,matmul_forms=tuned", "pp": "pp=2,dp=2,mbs=1"}
    words = ("predict", "tiny-1m", "-m", "frontier", "--plan", texts[plan], "--batch", "16")
    record = answered(*words, "--slow", "50%:100%", "--samples", "8")
    found = record["variability"]
    assert found["noise_free_step_s"] == record["step_s"]
    assert record["step_s"] < found["median_step_s"] <= 2 * record["step_s"]
    assert ("pp" in found["excess_s"]) == (plan == "pp")


@pytest.mark.slow
def test_why_says_it_too() -> None:
    words = ("tiny-30k", "-m", "host", "--plan", "dp=1", "--batch", "4", *NOISE)
    record = answered("why", *words, "--samples", "4")
    assert record["variability"] == answered("predict", *words, "--samples", "4")["variability"]
    said = simgpt("why", *words, "--samples", "4")
    shares = [float(each) for each in re.findall(r"([\d.]+) %\n", said.out.split("─\n")[-1])]
    assert sum(shares) == pytest.approx(100, abs=0.2)  # the table of what is added


def machine_with(folder: Path, table: str) -> str:
    document = machine_to_dict(load_machine("frontier"))
    document["device"]["variability"] = json.loads(table)
    path = folder / "own.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


FACT = '{"value": %s, "source": "a test", "confidence": "low"}'


def test_a_machines_own_noise_is_used_where_none_is_named(tmp_path: Path) -> None:
    table = f'{{"noise": {FACT % 0.02}, "slow_share": {FACT % 0.5}, "slow_by": {FACT % 0.25}}}'
    own = machine_with(tmp_path, table)
    words = ("predict", "tiny-1m", "-m", own, *PLAN)
    found = answered(*words, "--samples", "3")["variability"]
    assert found["noise"] == {"jitter": 0.02, "slow_share": 0.5, "slow_by": 0.25, "spread": 0.0}
    named = answered(*words, "--samples", "3", "--spread", "1%")["variability"]
    assert named["noise"] == {"jitter": 0.0, "slow_share": 0.0, "slow_by": 0.0, "spread": 0.01}


def test_a_machine_whose_slowest_device_counts_already_is_told_of() -> None:
    said = simgpt("predict", "tiny-30k", "-m", "perlmutter", "--plan", "dp=2", "--noise", "1%")
    assert said.status == 0
    assert "device.slowest" in said.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--noise 2", "--noise 2 2%"),
        ("--noise 101%", "--noise 101% 100%"),
        ("--noise -1%", "--noise -1% 0%"),
        ("--noise nan%", "--noise nan%"),
        ("--spread 1%%", "--spread 1%%"),
        ("--slow 5%", "--slow 5% 0.1%:5%"),
        ("--slow 1%:5%:2%", "--slow 1%:5%:2% 0.1%:5%"),
        ("--slow 1%:x", "--slow 1%:x 0.1%:5%"),
        ("--noise 1% --samples 1", "--samples 1 10,000"),
        ("--noise 1% --seed -1", "--seed -1"),
        ("--seed 1", "--seed --noise --slow --spread --samples"),
        ("--samples 5", "frontier device.variability"),
        ("--noise 1% --sweep z=1,2", "--sweep --noise"),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(words: str, named: str) -> None:
    said = simgpt(*PREDICT, *words.split())
    assert said.status == 2
    assert_names(said.sentence, *named.split())


@pytest.mark.parametrize(
    ("plan", "samples", "named"),
    [
        ("dp=8,mbs=1,batch=8000000", "10000", "8 10,002 --samples"),
        ("pp=2,dp=4,mbs=1,batch=4000000", "30", "1,000,000 2 --samples"),
    ],
)
def test_more_than_can_be_drawn_is_refused_by_name(plan: str, samples: str, named: str) -> None:
    command = ("predict", "tiny-30k", "-m", "frontier", "--plan", plan)
    said = simgpt(*command, "--noise", "1%", "--samples", samples)
    assert said.status == 3
    assert_names(said.sentence, *named.split())


def test_a_step_whose_clocks_would_not_be_exact_is_refused() -> None:
    command = ("predict", "tiny-30k", "-m", "frontier", "--plan", "dp=2")
    said = simgpt(*command, "--set", "device.launch=1000 s", "--noise", "1%")
    assert said.status == 3
    assert_names(said.sentence, "2.5 hours", "--samples")
