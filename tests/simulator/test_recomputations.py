"""What recomputation costs and saves, estimated: against what is counted and predicted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.explain.enough_recomputation import EnoughRecomputation
from simulator.explain.nearest_fit import memory_of_stack
from simulator.explain.recomputations import Recomputation, estimated_bytes, recomputations
from simulator.predict import predict
from simulator.search.bounds.peak_memory import plan_bytes
from simulator.stacks import EXECUTOR, load_stack
from simulator.stacks.job import Job, job_of
from simulator.uncertainty.fitting import EXACT
from topologies.machine_files import load_machine
from topologies.placement import with_room
from workload.gpt import find_model
from workload.plan_text import parse_plan

H100 = with_room(load_machine("16x8xH100,8xNDR"), 128)
FEW = {"mixtral-8x7b": 8, "deepseek-v2-lite": 6, "llama-3.1-8b": 8, "nemotron-h-8b": 0}


def asked(model: str, text: str, stack: str = "megatron-core") -> Job:
    gpt = find_model(model)
    gpt = replace(gpt, layers=FEW[model]) if FEW[model] else gpt
    own = EXECUTOR if stack == "simgpt" else load_stack(stack)
    return job_of(gpt, text, own, devices=128, batch=1024)


def found(job: Job) -> dict[str, Recomputation]:
    every = recomputations(job.gpt, job.plan, job.stack, H100)
    assert [each.seconds for each in every] == sorted(each.seconds for each in every)
    return {each.words: each for each in every}


@pytest.mark.parametrize(
    ("model", "text", "share"),
    [
        ("mixtral-8x7b", "ep=8,dp=rest,mbs=4,zero=1", 0.01),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("deepseek-v2-lite", "ep=8,dp=rest,mbs=4,zero=1", 0.01),
                ("mixtral-8x7b", "ep=8,pp=2,vpp=2,dp=rest,mbs=2,zero=1", 0.05),
            )
        ),
        ("llama-3.1-8b", "tp=2,sp=true,pp=2,dp=rest,mbs=4,zero=1", 0.05),
        pytest.param("nemotron-h-8b", "dp=rest,mbs=1,zero=1", 0.05, marks=pytest.mark.slow),
    ],
)
def test_an_estimate_of_memory_misses_the_peak_by_little(
    model: str, text: str, share: float
) -> None:
    job = asked(model, text)

    def peak(recompute: str) -> int:
        plan = job.plan.changed(recompute=recompute)
        return plan_bytes(job.gpt, plan, memory_of_stack(job.stack, plan))

    most, least = peak("none"), peak("full")
    every = found(job)
    some = [each for each in every.values() if "+" not in each.words][::2]
    some += [each for each in every.values() if each.words.count("+") == 1][::4]
    assert len(some) >= 3
    for each in some:
        peaks = {"most_bytes": most, "least_bytes": least}
        estimate = estimated_bytes(each, every["full"], job.plan, job.gpt.layers, **peaks)
        assert estimate == pytest.approx(peak(each.words), abs=share * (most - least)), each


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("mixtral-8x7b", "ep=8,dp=rest,mbs=4,zero=1"),
        ("llama-3.1-8b", "tp=2,sp=true,dp=rest,mbs=4,zero=1"),
    ],
)
def test_what_is_estimated_to_take_longer_does(model: str, text: str) -> None:
    """By twice or more, as collectives are left out."""
    job = asked(model, text)
    alone = [
        each for each in found(job).values() if "+" not in each.words and ":" not in each.words
    ]
    steps = {
        each.words: predict(
            job.gpt, job.plan.changed(recompute=each.words), H100, stack=job.stack
        ).step_s
        for each in alone
    }
    far = [(one, other) for one in alone for other in alone if other.seconds > 2 * one.seconds]
    assert len(far) >= 5
    assert not [pair for pair in far if steps[pair[0].words] > steps[pair[1].words]]


def test_layers_cost_and_save_their_share() -> None:
    """Chunks of four layers."""
    every = found(asked("llama-3.1-8b", "pp=2,dp=rest,mbs=1,zero=1"))
    for count in (1, 2, 3):
        each = every[f"full:{count}"]
        assert each.of_layers
        assert each.saved_bytes == pytest.approx(every["full"].saved_bytes * count / 4)
        assert each.seconds == pytest.approx(every["full"].seconds * count / 4)


def test_parts_add_up() -> None:
    every = found(asked("mixtral-8x7b", "ep=8,dp=rest,mbs=4,zero=1"))
    both = every["layernorm+moe_act"]
    assert both.seconds == pytest.approx(every["layernorm"].seconds + every["moe_act"].seconds)
    saved = every["layernorm"].saved_bytes + every["moe_act"].saved_bytes
    assert both.saved_bytes == pytest.approx(saved)
    assert not both.of_layers


def test_only_what_the_model_and_the_stack_have_runs_again() -> None:
    dense = found(asked("llama-3.1-8b", "dp=rest,mbs=1,zero=1"))
    parts = {
        part for each in dense.values() if not each.of_layers for part in each.words.split("+")
    }
    assert parts == {"selective", "core_attn", "layernorm", "mlp"}
    assert "core_attn" not in dense
    moe = found(asked("mixtral-8x7b", "ep=8,dp=rest,mbs=4,zero=1"))
    assert "moe" in moe
    assert not [words for words in moe if {"moe", "moe_act"} <= set(words.split("+"))]
    half = found(asked("llama-3.1-8b", "dp=rest,mbs=1", stack="torchtitan"))
    assert half
    assert all(each.of_layers for each in half.values())


def test_what_runs_again_already_stays() -> None:
    parts = found(asked("mixtral-8x7b", "ep=8,dp=rest,mbs=4,zero=1,recompute=layernorm"))
    assert "full:1" not in parts
    named = [each.words.split("+") for each in parts.values() if not each.of_layers]
    assert named
    assert all("layernorm" in each and len(each) > 1 for each in named)
    assert found(asked("llama-3.1-8b", "dp=rest,mbs=1,recompute=full")) == {}
    assert found(asked("llama-3.1-8b", "dp=rest,mbs=1,recompute=full:2")) == {}


def test_of_a_pipeline_as_few_layers_run_again_as_are_enough_to_the_byte() -> None:
    """Of a stage's three layers: two, and all where two need a byte more than there is."""
    gpt, machine = (
        replace(find_model("tiny-30k"), layers=6, sequence=1024),
        load_machine("frontier"),
    )
    plan = parse_plan("pp=2,mbs=1", batch=2)
    before, again = predict(gpt, plan, machine), plan.changed(recompute="full:2")
    two = predict(gpt, again, machine).memory.peak_bytes
    for room, enough in ((two, "full:2"), (two - 1, "full")):
        memory = replace(before.memory, capacity_bytes=room, errors=EXACT)
        small = replace(before, memory=memory)
        offered = EnoughRecomputation(small, machine, {"recompute": "full"}).changes()
        assert offered == [{"recompute": enough}]
