"""The nearest values that a refusal names: each passes all that its field is checked for."""

from __future__ import annotations

import re

import pytest

from simulator.stacks import EXECUTOR, load_stack
from simulator.stacks.job import job_of
from tests.simgpt.face import simgpt
from workload.errors import NearestError
from workload.gpt import find_model
from workload.lowering import check

PREDICT = "predict qwen3-30b-a3b -m 64x8xH100,8xNDR"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "-n 100 --plan dp=rest,ep=8 --batch 1000",
            "expert=8 does not divide data=100; nearest: 4",
        ),
        (
            "-n 96 --plan dp=rest,ep=48 --batch 960",
            "expert=48 does not divide experts=128; nearest: 32",
        ),
        (
            "-n 100 --plan dp=rest,cp=4 --batch 1000 --model-set sequence=4092",
            "2*context=8 does not divide sequence=4092; nearest context: 2",
        ),
        (
            "--plan dp=2,cp=4 --model-set sequence=4092",
            "2*context=8 does not divide sequence=4092; nearest context: 3, 6",
        ),
        (
            "-n 96 --plan dp=rest,cp=3,context_kind=ulysses --batch 96 --model-set sequence=6144",
            "x*context=3 does not divide heads=32 and kv_heads=4; nearest context: 2, 4",
        ),
        (
            "--plan tp=3",
            "x=3 does not divide heads=32 and kv_heads=4; nearest: 2, 4",
        ),
    ],
)
def test_what_is_named_passes_all_checks_of_its_field(words: str, sentence: str) -> None:
    """128 experts and 100 ranks have 1, 2 and 4 in common; 2*2 divides 4,092, and 2 divides 100."""
    said = simgpt(*f"{PREDICT} {words}".split())
    assert (said.status, said.sentence) == (3, f"simgpt: {sentence}")


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
                for each in re.findall(r"\d+", str(error).partition("nearest: ")[2]):
                    named += 1
                    nearest = plan.replace(f"ep={ranks}", f"ep={each}")
                    job = job_of(model, nearest, those, devices=devices, batch=devices)
                    check(job.gpt, job.plan)
    assert named > 20


def test_where_no_value_is_enough_those_that_mend_this_are_named() -> None:
    """Six ranks are asked for, so another x alone is none of the plan's."""
    said = simgpt(*f"{PREDICT} -n 6 --plan tp=6 --batch 1".split())
    assert said.sentence.endswith("x=6 does not divide heads=32 and kv_heads=4; nearest: 4")
