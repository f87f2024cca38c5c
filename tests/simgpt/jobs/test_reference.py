"""`simgpt compare --reference`: by which causes a job is slower or faster than another. The logs'
numbers are invented, but for the rates of NVIDIA/Megatron-LM, issue 1031."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from simgpt.commands.jobs.reference import TERA, described
from simulator.explain.waterfall import UNEXPLAINED, Fall, Waterfall
from tests.messages import assert_names
from tests.simgpt.face import simgpt

ROOT = Path(__file__).resolve().parents[3]
README = ("tp=8,pp=2,dp=48,recompute=none", "--reached", "420.5 TFLOP/s")
LOG = "docs/samples/megatron-lm-70b-invented.log"
SAMPLE = "docs/samples/dgxc-llama3-70b.toml"
MACHINE = ("-m", "96x8xH100,8xNDR")
FILE = """
model = "llama-3.1-8b"
machine = "8x8xH100,8xNDR"
devices = 64
batch = 256
plan = "tp=4,dp=rest,mbs=1,sp=true,overlap=oar+dp"
stack = "megatron-core"
[measured]
step = "4.2 s"
"""
SMALL = ("tests/simgpt/jobs/arguments/megatron.log", "-m", "8x8xH100,8xNDR", "--warm-up", "0")


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def compared(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(simgpt("compare", *words, "--json").out)
    return found


def causes(found: dict[str, Any]) -> dict[str, float]:
    return {each["cause"]: each["change"] for each in found["waterfall"]["causes"]}


def test_a_job_of_296_tflops_is_told_what_one_of_420_does_otherwise() -> None:
    """Recomputation costs a quarter of the matmuls' time, and is by far the largest cause."""
    found = compared(LOG, *MACHINE, "--reference", *README)
    way = found["waterfall"]
    assert way["reference_flops_per_s"] == pytest.approx(420.5e12)
    assert way["measured_flops_per_s"] == pytest.approx(296.5e12)
    parts = causes(found)
    assert min(parts, key=lambda each: parts[each]) == "recompute none → full"
    assert -0.30 < parts["recompute none → full"] / 420.5e12 < -0.20
    assert {"pp 2 → 8", "devices 768 → 128", UNEXPLAINED} < parts.keys()


@pytest.mark.slow
def test_causes_are_parts_of_what_the_reference_reached() -> None:
    """Of twice the rate they are twice as large."""
    once, twice = (
        causes(compared(*SMALL, "--reference", "tp=4,recompute=full", "--reached", rate))
        for rate in ("300 TFLOP/s", "600 TFLOP/s")
    )
    known = once.keys() - {UNEXPLAINED}
    assert {key: twice[key] for key in known} == pytest.approx({k: 2 * once[k] for k in known})
    assert known == {"tp 4 → 2", "recompute full → none"}


@pytest.mark.parametrize(
    "reference",
    [
        "tp=4,recompute=full",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("dgxc-004", "tp=4,pp=2,recompute=full", "mbridge-070", SAMPLE)
        ),
    ],
)
def test_the_causes_lead_from_the_reference_to_the_job_without_a_gap(reference: str) -> None:
    way = compared(*SMALL, "--reference", reference)["waterfall"]
    is_measured = "=" not in reference
    assert (way["reference_measured_over_predicted"] != 1) == is_measured
    ends = [(each["flops_per_s_before"], each["flops_per_s_after"]) for each in way["causes"]]
    assert ends[0][0] == way["reference_flops_per_s"]
    assert ends[-1][1] == way["measured_flops_per_s"]
    assert all(one[1] == two[0] for one, two in pairwise(ends))
    assert way["causes"][-1]["cause"] == UNEXPLAINED


def test_a_file_is_a_reference_with_its_own_plan_and_step(tmp_path: Path) -> None:
    """Its step of 4.2 s does the job's FLOPs, but for 256 rows that tp 4 adds to the vocabulary."""
    path = tmp_path / "own.toml"
    path.write_text(FILE, encoding="utf-8")
    found = compared(*SMALL, "--reference", str(path))
    told = found["predicted"]
    flops = told["model_flops_per_s_per_device"] * told["step_s"]
    assert found["waterfall"]["reference_flops_per_s"] == pytest.approx(flops / 4.2, rel=1e-3)
    assert list(causes(found)) == ["tp 4 → 2", UNEXPLAINED]


@pytest.mark.parametrize(
    "reference",
    [
        ("mbs=2,zero=0",),
        *(pytest.param(each, marks=pytest.mark.slow) for each in (README, ("mbridge-070",))),
    ],
)
def test_the_printed_numbers_add_up(reference: Sequence[str]) -> None:
    words = (LOG, *MACHINE) if reference is README else SMALL
    said = simgpt("compare", *words, "--reference", *reference).out
    table = said.rpartition("─\n")[2].splitlines()
    numbers = [[float(each) for each in re.findall(r"[-+]?\d+\.\d", row)[-3:]] for row in table]
    changes, shares = zip(*(row[1:] for row in numbers[1:-1]), strict=True)
    assert numbers[0][-1] + sum(changes) == pytest.approx(numbers[-1][0], abs=1e-6)
    assert sum(changes) == pytest.approx(numbers[-1][1], abs=1e-6)
    assert sum(shares) == pytest.approx(numbers[-1][2], abs=0.11)


def test_a_cause_is_printed_from_the_first_digit_that_is_shown() -> None:
    """Half a TFLOP/s and half a percent are; 0.04 of either would be printed as 0.0."""
    marks = [("slower", 100.0), ("alike", 99.5), (UNEXPLAINED, 99.46)]
    rates = [*(TERA * rate for _, rate in marks), 99.4 * TERA]
    falls = [Fall(words, *each) for (words, _), each in zip(marks, pairwise(rates), strict=True)]
    said = described(Waterfall(rates[0], rates[-1], 1.0, tuple(falls)), "another")
    assert {words: said.count(words) for words, _ in marks[:2]} == {"slower": 2, "alike": 0}


def test_the_job_itself_as_reference_leaves_what_is_not_explained() -> None:
    found = compared(*SMALL, "--reference", "tp=2")
    (rest,) = found["waterfall"]["causes"]
    assert rest["cause"] == UNEXPLAINED
    told = found["predicted"]["model_flops_per_s_per_device"]
    assert rest["flops_per_s_before"] == pytest.approx(told)


def test_a_log_is_compared_by_simgpts_flops_where_the_reference_has_no_rate_of_its_own() -> None:
    """The log says 520 TFLOP/s by a count of its own; its median step takes 3.7045 s."""
    found = compared(*SMALL, "--reference", "tp=2")
    told = found["predicted"]
    ours = told["model_flops_per_s_per_device"] * told["step_s"] / 3.7045
    assert found["waterfall"]["measured_flops_per_s"] == pytest.approx(ours)
    assert abs(ours / 520e12 - 1) > 0.01


def test_what_cannot_be_changed_alone_is_changed_with_the_next() -> None:
    """64 devices are no 16 stages of tensor-parallel groups of 8."""
    words = (SMALL[0], "-m", "16x8xH100,8xNDR", "--warm-up", "0")
    parts = causes(compared(*words, "--reference", "tp=8,pp=16,dp=1"))
    both, *others = parts
    assert_names(both, "devices 128 → 64", "tp 8 → 2")
    assert others == ["pp 16 → 1", UNEXPLAINED]


def test_a_question_that_the_log_contradicts_leads_to_the_logs_own_by_cause() -> None:
    """The log's job has tp 2 and no recomputation, on 64 devices with a batch of 256."""
    plan = "tp=4,dp=rest,mbs=1,sp=true,recompute=full"
    asked = ("llama-3.1-8b", *SMALL[1:3], "-n", "64", "--stack", "megatron-core", "--plan", plan)
    found = compared(SMALL[0], *asked, "--batch", "256", "--warm-up", "0")
    (difference,) = found["differences"]
    assert_names(difference, "tp", "2", "4")
    assert {"tp 4 → 2", "recompute full → none", UNEXPLAINED} <= causes(found).keys()
    same = plan.replace("tp=4", "tp=2")
    assert "waterfall" not in compared(SMALL[0], *asked[:-1], same, "--batch", "256")


def test_another_stack_is_a_cause_of_its_own() -> None:
    """CUDA graphs of all layers, which Megatron-Core's stack has not."""
    parts = causes(compared(*SMALL, "--reference", "stack=nemo+graphs=full"))
    assert next(iter(parts)) == "stack nemo+graphs=full → megatron-core"
    assert parts["stack nemo+graphs=full → megatron-core"] != 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--reached", "420 TFLOP/s"), ["--reached", "--reference"]),
        (("--reference", "no-such-run"), ["no-such-run"]),
        (("--reference", "tp=3"), ["tp=3", "64 devices"]),
        (("--reference", "tp=2", "--reached", "420"), ["--reached", "420"]),
    ],
)
def test_a_reference_that_is_none_is_refused_in_a_sentence(
    words: Sequence[str], named: list[str]
) -> None:
    said = simgpt("compare", *SMALL, *words)
    assert said.status in (2, 3)
    assert_names(said.sentence, *named)
