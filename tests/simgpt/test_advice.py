"""What to change about a plan that does not fit: only what makes it fit is named."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from simgpt import advice, tables
from simgpt.advice import _may_be_enough, starved, what_fits
from simulator.explain.changed_plan import fits
from simulator.explain.nearest_fit import memory_of_stack
from simulator.predict import Prediction, predict
from simulator.search.bounds.peak_memory import plan_bytes
from simulator.stacks import EXECUTOR, load_stack
from simulator.stacks.job import job_of
from simulator.uncertainty.fitting import EXACT
from tests.examples import one_in
from tests.messages import assert_names
from tests.simgpt.face import simgpt
from tests.simgpt.offers import changes_in, times_in
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.plan import Plan
from workload.plan_text import parse_fields, parse_plan

pytestmark = pytest.mark.usefixtures("exact_peaks")
PERLMUTTER = load_machine("perlmutter")
SPLIT = "y=2,dp=16,mbs=4"
ASKED = ("gpt-40b", "-m", "perlmutter", "-n", "1024", "--batch", "1024")


def predicted(text: str, devices: int = 1024, model: str = "gpt-40b") -> Prediction:
    plan = parse_plan(text, devices=devices, batch=1024)
    return predict(find_model(model), plan, load_machine("perlmutter"))


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        pytest.param(
            "tp=4,z=8,dp=rest",
            ["recompute=layernorm+mlp", "recompute=full:25", "mbs=1", SPLIT],
            marks=pytest.mark.slow,
        ),
        ("dp=rest", ["zero=3", "y=32,dp=32,mbs=1", "z=64,dp=16"]),
        pytest.param("tp=4,z=4,dp=rest", ["y=4,dp=16,mbs=4"], marks=pytest.mark.slow),
        pytest.param(
            "tp=4,z=8,pp=2,dp=rest,mbs=4",
            [
                *("recompute=layernorm", "sp=true", "mbs=2"),
                *("tp=8,dp=8", "y=2,dp=8"),
            ],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "tp=4,z=8,dp=rest,matmul_forms=tuned",
            [
                f"{change},matmul_forms=plain"
                for change in (
                    "recompute=layernorm+mlp",
                    "recompute=full:25",
                    "mbs=1",
                    SPLIT,
                )
            ],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_named_is_enough_and_the_mildest_of_its_kind(text: str, changes: list[str]) -> None:
    prediction = predicted(text)
    assert changes_in(what_fits(prediction, PERLMUTTER)) == changes
    for words in changes:
        changed = {key: value for key, _, value in (w.partition("=") for w in words.split(","))}
        fields = parse_fields(changed)
        plan = prediction.plan.changed(**fields)
        fitting = predict(prediction.gpt, plan, load_machine("perlmutter"))
        assert fitting.memory.fits
        assert fitting.memory.peak_bytes == plan_bytes(prediction.gpt, plan)


@pytest.mark.slow
def test_two_copies_of_the_model_in_a_pipeline_are_told_what_fits() -> None:
    text = "tp=2,pp=8,dp=rest,schedule=dualpipe,mbs=2,zero=1"
    prediction = predicted(text, devices=64, model="ornl-22b")
    said = what_fits(prediction, PERLMUTTER)
    assert_names(said, "11.44 GiB")
    enough = ["recompute=full:4", "schedule=1f1b", "mbs=1", "zero=3", "tp=4,dp=2"]
    assert changes_in(said) == enough


@pytest.mark.parametrize(
    ("text", "stack", "changes"),
    [
        pytest.param(
            "tp=4,z=8,dp=rest",
            "simgpt",
            ["recompute=full:25", "recompute=layernorm+mlp", SPLIT, "mbs=1"],
            marks=pytest.mark.slow,
        ),
        pytest.param(  # levers have the other order
            "dp=rest",
            "simgpt",
            ["z=64,dp=16", "zero=3", "y=32,dp=32,mbs=1"],
            marks=pytest.mark.slow,
        ),
        (
            "tp=4,z=8,dp=rest,recompute=none",
            "axonn",
            ["recompute=full:25", "recompute=layernorm+mlp", SPLIT, "mbs=1"],
        ),
    ],
)
def test_what_is_enough_is_ranked_by_the_step_that_it_is_predicted_to_take(
    text: str, stack: str, changes: list[str]
) -> None:
    asked = (*ASKED, "--stack", stack)
    said = simgpt("predict", *asked, "--plan", text).err
    assert changes_in(said) == changes
    times_s = [step_s_of(asked, text, change) for change in changes]
    assert times_s == sorted(times_s)
    assert times_in(said) == list(map(tables.seconds, times_s))


@pytest.mark.parametrize(
    ("devices", "changes", "milder"),
    [
        pytest.param(
            *(32, {"mbs": 1, "zero": 2}, [{"mbs": 2}, {"zero": 1}]),
            marks=pytest.mark.slow,
        ),
        (
            16,
            {"recompute": "full", "mbs": 8, "zero": 2},
            [{"recompute": "none"}, {"mbs": 16}, {"zero": 1}],
        ),
    ],
)
def test_changes_that_are_enough_together_are_each_as_mild_as_the_others_allow(
    devices: int, changes: dict[str, Any], milder: list[dict[str, Any]]
) -> None:
    plan, machine = parse_plan("ep=8,dp=rest", devices=devices, batch=256), "dgx-h100"
    prediction = predict(find_model("mixtral-8x7b"), plan, load_machine(machine))
    words = ",".join(f"{key}={value}" for key, value in changes.items())
    assert changes_in(what_fits(prediction, load_machine(machine))) == [words]
    assert fits(prediction, changes)
    assert not any(fits(prediction, changes | each) for each in milder)


def step_s_of(asked: tuple[str, ...], text: str, change: str) -> float:
    """The step of a plan in which the words of a change stand in for earlier ones."""
    words = dict(each.split("=") for each in f"{text},{change}".split(","))
    plan = ",".join(f"{key}={value}" for key, value in words.items())
    return float(json.loads(simgpt("predict", *asked, "--plan", plan, "--json").out)["step_s"])


@pytest.mark.slow
def test_the_time_alone_decides() -> None:
    """Times that are made up, by which the smaller micro-batch is faster."""
    prediction = predicted("tp=4,z=8,dp=rest")
    size = prediction.plan.mbs

    def predicted_as_told(plan: Plan) -> Prediction:
        memory = replace(prediction.memory, peak_bytes=0)
        return replace(prediction, plan=plan, step_s=3.0 * plan.mbs, memory=memory)

    said = what_fits(prediction, PERLMUTTER, predicted_as_told)
    others = ["recompute=layernorm+mlp", "recompute=full:25", SPLIT]
    assert changes_in(said) == ["mbs=1", *others]
    assert times_in(said) == ["3.00 s", *[f"{3.0 * size:#.3g} s"] * 3]


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (
            "dp=8,mbs=1,recompute=full",
            [
                *("zero=2", "ep=8", "tp=4,dp=2,mbs=1", "tp=8,dp=1,mbs=1"),
                "z=4,dp=2",
            ],
        ),
        pytest.param(
            "dp=8,ep=2,mbs=1,recompute=full",
            [
                *("offload=optimizer", "zero=1", "ep=8", "tp=2,dp=4,mbs=1"),
                "tp=4,dp=2,mbs=1",
            ],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "cp=8,ep=8,mbs=1,recompute=full",
            ["loss_chunks=2", "gradients=bf16", "offload=optimizer", "zero=1"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_experts_are_given_more_ranks_and_what_they_refuse_hides_no_other_change(
    text: str, changes: list[str]
) -> None:
    """Experts over 8 ranks refuse z=8; zero shards over context as over data."""
    plan = parse_plan(text, devices=8, batch=8)
    machine = load_machine("dgx-h100")
    prediction = predict(find_model("deepseek-v2-lite"), plan, machine)
    assert changes_in(what_fits(prediction, machine)) == changes


@pytest.mark.parametrize(
    ("stack", "text"),
    [
        ("nemo", "ep=8,dp=8,mbs=1,zero=1,precision=fp8"),
        ("megatron-core", "pp=2,vpp=2,dp=4,ep=4,mbs=2,zero=1"),
    ],
)
def test_what_fits_is_judged_with_what_the_stack_has_in_memory(stack: str, text: str) -> None:
    gpt = replace(find_model("mixtral-8x7b"), layers=4)
    job = job_of(gpt, text, load_stack(stack), devices=8, batch=64)
    machine = load_machine("dgx-h100")
    found = predict(job.gpt, job.plan, machine, stack=job.stack).memory.peak_bytes
    assert plan_bytes(job.gpt, job.plan, memory_of_stack(job.stack, job.plan)) == found
    assert plan_bytes(job.gpt, job.plan.changed(recipe="none")) > found


@pytest.mark.parametrize(
    ("micro_batch", "zero", "model"),
    one_in(12, product((2, 4), (0, 1, 3), ("gpt-40b", "mixtral-8x7b"))),
)
def test_what_is_there_all_the_time_is_less_than_any_change_of_activations_leaves(
    model: str, zero: int, micro_batch: int
) -> None:
    """Else a change that is enough would not be tried. 4 sequences are all that a device has."""
    text = f"tp=4,z=8,dp=rest,zero={zero},mbs={micro_batch}"
    gpt, plan = find_model(model), parse_plan(text, devices=1024, batch=1024)
    resident = predict(gpt, plan, load_machine("perlmutter")).memory.resident_bytes
    changes: list[dict[str, Any]] = [{"recompute": "full"}, {"mbs": 1}]
    least = min(plan_bytes(gpt, plan.changed(**change)) for change in changes)
    assert 0 < resident < least


@pytest.mark.parametrize(
    ("model", "text"),
    one_in(
        3,
        [
            ("gpt-40b", "tp=4,z=8,dp=rest"),
            ("gpt-40b", "tp=4,pp=2,dp=rest,mbs=4"),
            ("mixtral-8x7b", "tp=4,z=8,dp=rest,zero=2"),
            ("deepseek-v2-lite", "pp=2,dp=rest,ep=2,mbs=4"),
            ("deepseek-v2-lite", "dp=rest,ep=4,dispatcher=all_gather,zero=3"),
        ],
    ),
)
def test_activations_are_no_less_where_states_are_sharded_further(model: str, text: str) -> None:
    """Else a change that is enough would not be tried."""
    gpt, plan = replace(find_model(model), layers=4), parse_plan(text, devices=256, batch=2048)
    memory = predict(gpt, plan, load_machine("perlmutter")).memory
    changes = [
        *({"zero": zero} for zero in range(plan.zero + 1, 4)),
        *({"z": plan.z * n, "dp": plan.dp // n} for n in (2, 8)),
        *({"ep": plan.ep * n} for n in (2, 8) if gpt.moe.experts > 8),
    ]
    peaks = [plan_bytes(gpt, plan.changed(**change)) for change in changes]
    assert 0 < memory.parts["activations"] <= min(peaks)


def test_experts_in_a_recipe_have_less_room_each_where_more_ranks_have_them() -> None:
    """So a change of theirs is tried though all of the activations would not fit."""
    gpt = replace(find_model("deepseek-v2-lite"), layers=2)
    plan = parse_plan("dp=8,recipe=fp8-blockwise,mbs=4", devices=8, batch=64)
    machine = load_machine("dgx-h100")
    few, many = (
        predict(gpt, replace(plan, ep=n), machine, stack=load_stack("nemo")) for n in (1, 8)
    )
    nbytes = many.memory.parts["activations"]
    assert nbytes < few.memory.parts["activations"]
    full = replace(few, memory=replace(few.memory, capacity_bytes=nbytes, errors=EXACT))
    assert _may_be_enough(full, {"ep": 8})


@pytest.mark.parametrize("model", ["gpt-40b", "mixtral-8x7b"])
def test_nothing_is_lowered_for_what_leaves_activations_that_do_not_fit(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[dict[str, Any]] = []
    monkeypatch.setattr(advice, "_fits", lambda _, change: tried.append(change))
    said = what_fits(predicted("dp=rest,mbs=8,zero=2", devices=128, model=model), PERLMUTTER)
    assert "z=" not in said
    splits = {"recompute", "tp", "y", "pp"}  # of which activations become fewer
    assert not [change for change in tried if splits.isdisjoint(change)]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["why", "sbatch"])
def test_other_commands_say_the_same_times(command: str) -> None:
    words = ("gpt2-xl", "-m", "1x2xH100", "--plan", "dp=2", "--batch", "512")
    remedy = simgpt("predict", *words).err.strip()
    assert len(times_in(remedy)) == len(changes_in(remedy)) > 0
    assert simgpt(command, *words).err.strip().endswith(remedy)


def test_where_nothing_is_enough_it_says_so() -> None:
    said = what_fits(predicted("z=4", devices=4), PERLMUTTER)
    assert changes_in(said) == []
    assert_names(said, "5,769.55 GiB", "devices", "simgpt search")


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        (Plan(pp=4, batch=8, mbs=8), "1 4 mbs"),
        (Plan(pp=4, dp=4, batch=8, mbs=1), "2 4 batch"),
        (Plan(pp=4, batch=8, mbs=2), ""),
        (Plan(batch=8, mbs=8), ""),
    ],
)
def test_a_pipeline_with_too_few_micro_batches_is_told_so(plan: Plan, named: str) -> None:
    said = starved(plan)
    assert bool(said) == bool(named)
    assert_names(said, *named.split())


@pytest.mark.slow
def test_what_a_stack_does_not_run_is_not_named() -> None:
    model, text = find_model("llama-3.1-70b"), "tp=4,pp=2,vpp=5,dp=rest,mbs=1,sp=true"
    machine = load_machine("32x8xH100")
    words = []
    for stack in (EXECUTOR, load_stack("megatron-core")):
        found = job_of(model, text, stack, devices=256, batch=512)
        words.append(what_fits(predict(found.gpt, found.plan, machine, stack=found.stack), machine))
    assert "z=" in words[0]
    assert "z=" not in words[1]
