"""Choices of experts counted in a run are the histogram that predicts its rows and its memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from executor.launching.launch import launch
from executor.launching.task_specs import Job, task_line
from executor.training.chosen_experts import ChosenExperts, copies_of_choices
from simulator.predict import predict
from tests.messages import assert_names
from tests.simgpt.face import simgpt
from topologies.machine_files import load_machine
from workload.expert_loads.histogram import expert_layers, routed
from workload.expert_loads.histogram_file import as_document, histogram_of
from workload.gpt import find_model
from workload.lowering import lower
from workload.op import Op
from workload.plan import Plan
from workload.plan_text import parse_plan

MIXTRAL, DEEPSEEK = "tiny-mixtral-130k", "tiny-deepseek-2m"
BATCH = 8


def test_choices_that_run_again_count_once() -> None:
    plan = parse_plan("recompute=full,dp=1,batch=4,mbs=2")
    program = lower(find_model(MIXTRAL), plan)
    found = ChosenExperts(4, plan.micro_batches)
    routes = [op for op in program.ops if op.kind == "route" and op.part.layer == 1]
    assert len(routes) == 2 * 2
    for op in routes:
        found.add(op, torch.tensor([[3, 0], [3, 1]]))
    assert found.counts() == {1: [2, 2, 0, 4]}
    found.add(Op("m2.l1.route", "route", (), (), part=routes[0].part, micro_batch=2), torch.ones(1))
    assert found.counts() == {1: [2, 2, 0, 4]}


@pytest.mark.parametrize(
    ("plan", "axes"),
    [("tp=2,y=2,dp=2", ("y", "tp")), ("tp=2,dp=2,sp=true", ("y",)), ("z=2,cp=2", ("y", "tp"))],
)
def test_ranks_that_choose_alike_count_once(plan: str, axes: tuple[str, ...]) -> None:
    assert copies_of_choices(parse_plan(plan, batch=BATCH)) == axes


def trained(model: str, plan: Plan, steps: int) -> dict[str, Any]:
    job = Job(gpt=find_model(model), plan=plan, steps=steps, device="cpu", counts_experts=True)
    ranks, told = plan.grid.ranks, task_line(job)
    return launch("train", told, ranks=ranks, report=lambda _: None, timeout_s=250.0)


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "text", "steps"),
    [
        (MIXTRAL, "dp=2,ep=2", 3),
        (MIXTRAL, "dp=2,ep=2,recompute=full,mbs=1", 2),
        (MIXTRAL, "tp=2,dp=2,ep=2,etp=2", 2),
        (MIXTRAL, "tp=2,dp=2,ep=4,etp=1,sp=true", 2),
        (MIXTRAL, "y=2,z=2", 2),
        (DEEPSEEK, "dp=2,ep=2,pp=2,mbs=2", 2),
        (DEEPSEEK, "cp=2,dp=2,ep=4", 2),
    ],
)
def test_every_choice_of_a_run_is_counted_once(model: str, text: str, steps: int) -> None:
    gpt, plan = find_model(model), parse_plan(f"{text},precision=fp32", batch=BATCH)
    found = trained(model, plan, steps)["chosen_experts"]
    assert sorted(map(int, found)) == expert_layers(gpt)
    for counts in found.values():
        assert len(counts) == gpt.moe.experts
        assert sum(counts) == BATCH * gpt.sequence * gpt.moe.topk * steps


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "text"),
    [
        (MIXTRAL, "dp=2,ep=2"),
        (MIXTRAL, "dp=4,ep=4,zero=1"),
        (MIXTRAL, "tp=2,dp=2,ep=4,etp=1,sp=true"),
        (DEEPSEEK, "dp=2,ep=2,recompute=full"),
        (DEEPSEEK, "cp=2,dp=2,ep=4"),
    ],
)
def test_the_histogram_of_a_step_predicts_its_rows_and_its_fullest_rank(
    model: str, text: str
) -> None:
    """A step of one micro-batch in one group of experts: what each rank got, layer by layer."""
    plan = parse_plan(f"{text},precision=fp32", batch=BATCH)
    result = trained(model, plan, 1)
    measured: dict[str, float] = {}
    for entry in result["ranks"]:
        for name, share in entry["rows_over_mean"].items():
            measured[name] = max(share, measured.get(name, 0.0))
    counts = {int(layer): tuple(own) for layer, own in result["chosen_experts"].items()}
    gpt = find_model(model)
    uneven = routed(gpt, histogram_of(as_document(counts, "a run"), gpt, "it"))
    programs = [lower(each, plan).buffers for each in (uneven, gpt)]
    predicted = {
        each.rows_of: each.shape[0] / programs[1][name].shape[0]
        for name, each in programs[0].items()
        if each.rows_of
    }
    assert predicted == measured
    answer = predict(uneven, plan, load_machine("dgx-h100"))
    assert answer.load is not None
    assert answer.load.mean_over_mean == pytest.approx(result["rows_over_mean"])
    assert answer.memory.peak_bytes == result["routed_peak_bytes"]


@pytest.mark.distributed
@pytest.mark.slow
def test_what_a_run_writes_is_what_predict_reads(tmp_path: Path) -> None:
    path, plan = tmp_path / "routing.json", ("--plan", "dp=2,ep=2,precision=fp32")
    how = ("--batch", "8", "--no-predict", "--json", "--device", "cpu", "--timeout", "250")
    said = simgpt("run", MIXTRAL, *plan, *how, "--steps", "2", "--routing-out", str(path))
    assert said.status == 0, said.err
    assert_names(said.err, f"simgpt predict --routing {path}")
    document = json.loads(path.read_text(encoding="utf-8"))
    assert_names(document["source"], f"simgpt run {MIXTRAL}", "2 steps", "8 sequences")
    counts = histogram_of(document, find_model(MIXTRAL), "it")
    step = ("-m", "host", "-n", "2", "--batch", "8", "--routing", str(path), "--json")
    said = simgpt("predict", MIXTRAL, *plan, *step)
    assert said.status == 0, said.err
    found = json.loads(said.out)["routing"]
    assert found["most_over_mean"] == max(counts.over_mean(n, 2) for n in range(len(counts.layers)))


@pytest.mark.parametrize(
    ("model", "more", "named"),
    [
        ("tiny-2m", (), ["--routing-out", "tiny-2m"]),
        (MIXTRAL, ("--cuda-graphs",), ["--routing-out", "--cuda-graphs"]),
        (MIXTRAL, ("--trace", "{path}"), ["--routing-out", "--trace"]),
        (MIXTRAL, ("-o", "{path}"), ["-o", "--routing-out"]),
        (MIXTRAL, ("--dry",), ["--routing-out", "--dry"]),
    ],
)
def test_a_run_that_counts_no_choices_says_so(
    model: str, more: tuple[str, ...], named: list[str], tmp_path: Path
) -> None:
    path = str(tmp_path / "routing.json")
    own = [word.format(path=path) for word in more]
    said = simgpt("run", model, "--routing-out", path, *own)
    assert said.status == 2
    assert_names(said.err, *named)
