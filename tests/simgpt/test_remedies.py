"""Remedies for plans that do not fit: sequences split over context, and parts of layers that run
again; each as little as is enough, and none but these simulated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simgpt import tables
from simgpt.advice import NAMED, PREDICTED, what_fits
from simulator.predict import Prediction, predict
from simulator.stacks import load_stack
from simulator.stacks.job import Job, job_of
from simulator.uncertainty.fitting import EXACT
from tests.examples import one_in, slow
from tests.messages import assert_names
from tests.simgpt.face import Said, simgpt
from tests.simgpt.offers import changes_in, times_in
from topologies.machine_files import load_machine
from topologies.placement import with_room
from workload.gpt import find_model
from workload.plan import Plan

pytestmark = pytest.mark.usefixtures("exact_peaks")
LLAMA = (
    *("predict", "llama-3.1-8b", "-m", "4x8xH100,8xNDR", "-n", "16", "--stack", "megatron-core"),
    *("--batch", "16"),
)
ALONE = ("layernorm", "moe_act", "selective")
H100 = with_room(load_machine("16x8xH100,8xNDR"), 128)


def asked(plan: str, sequence: str, *words: str, layers: int = 2) -> Said:
    """What a plan for sequences of a length is answered."""
    sizes = ("--model-set", f"sequence={sequence}", "--model-set", f"layers={layers}")
    return simgpt(*LLAMA, "--plan", plan, *sizes, *words)


def told(plan: str, sequence: str, *words: str, layers: int = 2) -> str:
    """What is said of a plan that does not fit."""
    return asked(plan, sequence, *words, layers=layers).err.strip()


def fits(plan: str, sequence: str, *words: str, layers: int = 2) -> bool:
    found = json.loads(asked(plan, sequence, "--json", *words, layers=layers).out)
    return bool(found["memory"]["fits"])


@pytest.mark.parametrize(
    ("plan", "sequence", "ranks", "fewer"),
    one_in(
        3,
        [
            ("tp=2,dp=rest,mbs=1,sp=true,zero=1", "512Ki", 4, 2),
            ("tp=2,cp=2,dp=rest,mbs=1,sp=true,zero=1", "512Ki", 4, 2),
            ("tp=2,dp=rest,mbs=1,sp=true,zero=1,recompute=full", "1Mi", 8, 4),
        ],
    ),
)
def test_a_long_sequence_is_split_over_the_fewest_ranks_that_are_enough(
    plan: str, sequence: str, ranks: int, fewer: int
) -> None:
    split = f"cp={ranks},dp={8 // ranks}"
    assert changes_in(told(plan, sequence))[0] == split
    alone = plan.replace("cp=2,", "")
    assert fits(alone.replace("dp=rest", split), sequence)
    assert not fits(alone.replace("dp=rest", f"cp={fewer},dp=rest"), sequence)


def test_a_loss_is_cut_into_the_fewest_chunks_that_are_enough_where_logits_are_too_large() -> None:
    asked = ("predict", "llama-3-8b", "--model-set", "layers=4", "-m", "1x8xA100-40", "-n", "4")
    plan = ("--batch", "32", "--plan", "fsdp=true,dp=rest,mbs=8,recompute=full")
    assert changes_in(simgpt(*asked, *plan, "--stack", "fsdp").err)[0] == "loss_chunks=2"
    assert "loss_chunks" not in simgpt(*asked, *plan, "--stack", "megatron-core").err


@pytest.mark.slow
def test_only_what_divides_sequence_and_ranks_is_named() -> None:
    """12 ranks of data are split by 3, and 8 are not; 2*3 divides 9 * 2**15 tokens."""
    plan = "tp=2,dp=rest,mbs=1,sp=true,zero=1"
    wide = ("-n", "24", "--batch", "24")
    assert "cp=3,dp=4" in changes_in(told(plan, "294912", *wide, layers=3))
    assert "cp=4,dp=2" in changes_in(told(plan, "294912", layers=3))
    assert "cp=4,dp=3" in changes_in(told(plan, "262144", *wide, layers=3))


def test_context_stands_among_other_changes_by_its_time() -> None:
    said = told("tp=1,dp=rest,mbs=16,zero=1", "16384", "--batch", "256")
    assert changes_in(said) == [
        "mbs=4",
        "cp=4,dp=4,mbs=16",
        "tp=4,dp=4,mbs=16",
        "tp=8,dp=2,mbs=16",
    ]


def test_sequences_that_are_not_long_are_not_split() -> None:
    """Though 8,184 tokens divide over 4 ranks as well."""
    said = told("tp=1,dp=rest,mbs=16,zero=1", "8184", "--batch", "256")
    assert "mbs=8" in said
    assert "cp" not in said


def test_context_goes_together_with_other_changes_where_these_are_not_enough() -> None:
    plan, words = "tp=4,dp=4,mbs=1,sp=true,zero=1", ("--batch", "4")
    (change,) = changes_in(told(plan, "1Mi", *words, layers=4))
    assert change == "recompute=full,zero=3,cp=4,dp=1,mbs=1"
    alone = "tp=4,mbs=1,sp=true,recompute=full,zero=3"
    assert fits(f"{alone},cp=4,dp=1", "1Mi", *words, layers=4)
    assert not fits(f"{alone},cp=2,dp=2", "1Mi", *words, layers=4)


def test_where_no_split_is_enough_the_search_that_splits_further_is_named() -> None:
    said = told("tp=2,dp=2,mbs=1,sp=true,zero=1", "2Mi", "-n", "4", "--batch", "4")
    assert changes_in(said) == []
    assert_names(said, "simgpt search")


def test_a_stack_without_context_is_told_of_none() -> None:
    words = ("--stack", "gpt-neox")
    assert "cp" not in told("tp=1,dp=rest,mbs=16,zero=1", "16384", "--batch", "256", *words)


def mixtral(text: str, **fields: int) -> Job:
    gpt = find_model("mixtral-8x7b").changed(**fields)
    return job_of(gpt, text, load_stack("megatron-core"), devices=128, batch=1024)


def predicted(job: Job, plan: Plan) -> Prediction:
    return predict(job.gpt, plan, H100, stack=job.stack)


@pytest.mark.parametrize(
    ("text", "short_bytes", "parts"),
    [
        ("ep=8,dp=rest,mbs=4,zero=1", 2**30, "layernorm"),
        ("ep=8,dp=rest,mbs=4,zero=1", 8 * 2**30, "layernorm+moe_act"),
        *slow(
            ("ep=8,dp=rest,mbs=4,zero=1", 5 * 2**30, "moe_act"),
            ("ep=8,dp=rest,mbs=4,zero=1,recompute=layernorm", 2 * 2**30, "layernorm+moe_act"),
            ("ep=8,dp=rest,mbs=4,zero=1,pp=4,vpp=2", 2 * 2**30, "layernorm"),
        ),
    ],
)
def test_the_parts_of_layers_that_cost_least_and_are_enough_are_named(
    text: str, short_bytes: int, parts: str
) -> None:
    """A device is that much too small: cheaper sets of parts leave less room."""
    job = mixtral(text, layers=8)
    before = predicted(job, job.plan)
    room = before.memory.peak_bytes - short_bytes
    small = replace(before, memory=replace(before.memory, capacity_bytes=room, errors=EXACT))
    said = what_fits(small, H100)
    assert changes_in(said)[0] == f"recompute={parts}"
    after = predicted(job, job.plan.changed(recompute=parts))
    assert after.memory.peak_bytes <= room
    if job.plan.training.recompute == "none":
        others = (predicted(job, job.plan.changed(recompute=each)) for each in ALONE)
        assert not [p for p in others if p.step_s < after.step_s and p.memory.peak_bytes <= room]


@pytest.mark.slow
def test_what_is_offered_is_the_fastest_of_a_few_changes_simulated_once_each() -> None:
    job = mixtral("ep=8,dp=rest,mbs=4,zero=1", layers=8)
    before = predicted(job, job.plan)
    room = before.memory.peak_bytes - 5 * 2**30
    asked: list[Plan] = []

    def other(plan: Plan) -> Prediction:
        asked.append(plan)
        found = predicted(job, plan)
        return replace(found, memory=replace(found.memory, capacity_bytes=room, errors=EXACT))

    small = replace(before, memory=replace(before.memory, capacity_bytes=room, errors=EXACT))
    said = what_fits(small, H100, other)
    assert len(asked) == len(set(asked)) <= PREDICTED
    assert len(changes_in(said)) == min(len(asked), NAMED)
    assert {f"recompute={plan.training.recompute}" for plan in asked} >= {"recompute=moe_act"}


def test_uneven_experts_are_told_of_the_part_that_they_fill(tmp_path: Path) -> None:
    """The rank with most rows is short by what activations of experts keep; whole layers, which
    are recomputed with them, would take a third longer."""
    routing = tmp_path / "skew.toml"
    routing.write_text("tokens=[100,50,50,50,25,25,10,10]\n", encoding="utf-8")
    where = ("-m", "1x8xH100", "-n", "8", "--stack", "megatron-core", "--model-set", "layers=4")
    words = ("predict", "mixtral-8x7b", *where, "--batch", "8", "--set", "device.memory=22GiB")
    plan, skewed = "tp=1,ep=8,dp=rest,mbs=1,zero=1,gradients=bf16", ("--routing", str(routing))
    assert simgpt(*words, "--plan", plan).status == 0
    said = simgpt(*words, "--plan", plan, *skewed).err
    found = dict(zip(changes_in(said), times_in(said), strict=True))
    assert not [change for change in found if change.startswith("recompute=full")]
    again = simgpt(*words, "--plan", f"{plan},recompute=moe_act", *skewed, "--json")
    assert found["recompute=moe_act"] == tables.seconds(json.loads(again.out)["step_s"])
