"""The nearest values that a refusal names: each passes all that its field is checked for."""

from __future__ import annotations

import re

import pytest

from simulator.stacks import EXECUTOR, load_stack
from simulator.stacks.job import job_of
from tests.messages import assert_names
from tests.simgpt.face import simgpt
from workload.errors import NearestError
from workload.gpt import find_model
from workload.lowering import check

PREDICT = "predict qwen3-30b-a3b -m 64x8xH100,8xNDR"


@pytest.mark.parametrize(
    ("words", "named", "nearest"),
    [
        ("-n 100 --plan dp=rest,ep=8 --batch 1000", "100", ["4"]),
        ("-n 96 --plan dp=rest,ep=48 --batch 960", "experts=128", ["32"]),
        (
            "-n 100 --plan dp=rest,cp=4 --batch 1000 --model-set sequence=4092",
            "sequence=4092",
            ["2"],
        ),
        ("--plan dp=2,cp=4 --model-set sequence=4092", "sequence=4092", ["3", "6"]),
        (
            "-n 96 --plan dp=rest,cp=3,context_kind=ulysses --batch 96 --model-set sequence=6144",
            "heads=32 kv_heads=4",
            ["2", "4"],
        ),
        ("--plan tp=3", "heads=32 kv_heads=4", ["2", "4"]),
    ],
)
def test_what_is_named_passes_all_checks_of_its_field(
    words: str, named: str, nearest: list[str]
) -> None:
    """128 experts and 100 ranks have 1, 2 and 4 in common; 2*2 divides 4,092, and 2 divides 100."""
    said = simgpt(*f"{PREDICT} {words}".split())
    assert said.status == 3
    assert_names(said.sentence, *named.split())
    assert offered(said.sentence) == nearest


@pytest.mark.parametrize("stack", ["simgpt", "megatron-core"])
def test_a_job_with_what_is_named_is_not_refused_for_it(stack: str) -> None:
    model, those = find_model("qwen3-30b-a3b"), EXECUTOR if stack == "simgpt" else load_stack(stack)
    named = 0
    for devices in (60, 96, 100):
        for ranks in range(3, 50, 5):
            plan = f"dp=rest,ep={ranks},mbs=1"
            try:
                job_of(model, plan, those, devices=devices, batch=devices)
            except NearestError as error:
                for each in offered(str(error)):
                    named += 1
                    nearest = plan.replace(f"ep={ranks}", f"ep={each}")
                    job = job_of(model, nearest, those, devices=devices, batch=devices)
                    check(job.gpt, job.plan)
    assert named > 20


def test_where_no_value_is_enough_those_that_mend_this_are_named() -> None:
    """Six ranks are asked for, so another x alone is none of the plan's."""
    said = simgpt(*f"{PREDICT} -n 6 --plan tp=6 --batch 1".split())
    assert_names(said.sentence, "heads=32", "kv_heads=4")
    assert offered(said.sentence) == ["4"]


def offered(sentence: str) -> list[str]:
    """The numbers after what is wrong."""
    return re.findall(r"\d+", sentence.rpartition(";")[2])
