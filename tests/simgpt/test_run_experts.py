"""`simgpt run` of small mixtures of experts on four and eight ranks, and of what goes with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.simgpt.face import Said, simgpt
from tests.simgpt.test_run import _ops_by_process
from workload.gpt import find_model
from workload.lowering import lower
from workload.plan_text import parse_plan

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

EXACT = 1e-9
OF_EXPERTS = ("tiny-mixtral-130k", "data=2", "data=2,expert=2")
CAPACITY = ("--model-set", "capacity=1.0")
GOLDFISH = ("--goldfish-k", "4", "--goldfish-h", "3")


def run(model: str, plan: str, *words: str) -> Said:
    how = ("--batch", "8", "--no-predict", "--json", "--device", "cpu", "--timeout", "250")
    return simgpt("run", model, "--plan", plan, *how, *words)


def record_of(said: Said) -> dict[str, Any]:
    assert said.status == 0, said.err
    record: dict[str, Any] = json.loads(said.out)
    return record


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("tiny-mixtral-2m", "data=4,expert=4,zero=1"),
        ("tiny-mixtral-2m", "x=2,data=2,expert=2,expert_tensor=2"),
        ("tiny-deepseek-2m", "data=2,expert=2,pipe=2,micro_batch=2"),
        ("tiny-deepseek-2m", "x=2,data=4,expert=8,expert_tensor=1,sp=true,zero=2"),
        ("tiny-mixtral-2m", "data=4,expert=4,pipe=2,micro_batch=1,zero=1"),
        ("tiny-mixtral-2m", "context=2,y=2,data=2,expert=2,zero=3"),
    ],
)
def test_experts_on_four_and_eight_ranks_learn_and_leave_no_op_without_its_counterpart(
    model: str, plan: str, tmp_path: Path
) -> None:
    trace, words = tmp_path / "trace.json", ("--steps", "4", "--lr", "1e-3")
    gpt, plan = find_model(model), f"{plan},precision=fp32"
    record = record_of(run(model, plan, *words, "--trace", str(trace)))
    assert record["losses"][-1] < record["losses"][0] - 0.3
    split = parse_plan(plan, batch=8)
    programs = [lower(gpt, split, stage) for stage in range(split.pipe)]
    names = [sorted(op.name for op in program.ops) for program in programs]
    tracks = _ops_by_process(json.loads(trace.read_text(encoding="utf-8")))
    assert set(tracks) == {f"measured rank {rank}" for rank in range(split.grid.ranks)}
    for title, ops in tracks.items():
        stage = split.grid.coordinates(int(title.rpartition(" ")[2]))["pipe"]
        assert sorted(event["name"] for event in ops) == names[stage]
    assert record["predicted_peak_bytes"] == max(each.peak.total_bytes for each in programs)


@pytest.mark.parametrize("model", ["tiny-mixtral-2m", "tiny-deepseek-2m"])
def test_the_allocator_holds_what_the_program_says_for_the_rows_that_came(model: str) -> None:
    """The ranks whose experts get most rows hold more than the mean, which the plan counts."""
    for plan in ("data=2,expert=2", "data=4,expert=4,zero=1", "data=2,expert=2,recompute=full"):
        record = record_of(run(model, f"{plan},precision=fp32", "--steps", "1"))
        routed = record["routed_peak_bytes"]
        assert record["predicted_peak_bytes"] < routed <= record["peak_bytes"]
        assert record["peak_bytes"] == pytest.approx(routed, rel=0.02)
