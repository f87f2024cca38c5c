"""`simgpt run` of small mixtures of experts on four and eight ranks, and of what goes with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.messages import assert_names
from tests.simgpt.face import Said, simgpt
from tests.simgpt.test_run import _ops_by_process
from workload.gpt import find_model
from workload.lowering import lower
from workload.plan_text import parse_plan

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

EXACT = 1e-9
MIXTRAL, SMALL = "tiny-mixtral-130k", "tiny-30k"
TWO_WAY = "pp=2,schedule=dualpipe,mbs=2"
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
        ("tiny-mixtral-2m", "dp=4,ep=4,zero=1"),
        ("tiny-mixtral-2m", "tp=2,dp=2,ep=2,etp=2"),
        ("tiny-deepseek-2m", "dp=2,ep=2,pp=2,mbs=2"),
        ("tiny-deepseek-2m", "tp=2,dp=4,ep=8,etp=1,sp=true,zero=2"),
        ("tiny-mixtral-2m", "dp=4,ep=4,pp=2,mbs=1,zero=1"),
        ("tiny-mixtral-2m", "cp=2,y=2,dp=2,ep=2,zero=3"),
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
    programs = [lower(gpt, split, stage) for stage in range(split.pp)]
    names = [sorted(op.name for op in program.ops) for program in programs]
    tracks = _ops_by_process(json.loads(trace.read_text(encoding="utf-8")))
    assert set(tracks) == {f"measured rank {rank}" for rank in range(split.grid.ranks)}
    for title, ops in tracks.items():
        stage = split.grid.coordinates(int(title.rpartition(" ")[2]))["pp"]
        assert sorted(event["name"] for event in ops) == names[stage]
    assert record["predicted_peak_bytes"] == max(each.peak.total_bytes for each in programs)


@pytest.mark.parametrize("model", ["tiny-mixtral-2m", "tiny-deepseek-2m"])
def test_the_allocator_holds_what_the_program_says_for_the_rows_that_came(model: str) -> None:
    """The ranks whose experts get most rows hold more than the mean, which the plan counts."""
    for plan in ("dp=2,ep=2", "dp=4,ep=4,zero=1", "dp=2,ep=2,recompute=full"):
        record = record_of(run(model, f"{plan},precision=fp32", "--steps", "1"))
        routed = record["routed_peak_bytes"]
        assert record["predicted_peak_bytes"] < routed <= record["peak_bytes"]
        assert record["peak_bytes"] < 1.02 * routed, plan


@pytest.mark.parametrize(
    ("model", "plan", "split", "words"),
    [
        (MIXTRAL, "dp=2", "dp=2,ep=2,offload=optimizer", ()),
        (MIXTRAL, "dp=2", "dp=2,ep=2,offload=optimizer,zero=1", CAPACITY),
        (MIXTRAL, "dp=2", "dp=2,ep=2", GOLDFISH),
        (MIXTRAL, "dp=2", "dp=2,ep=2,zero=3", (*GOLDFISH, *CAPACITY)),
        (MIXTRAL, "dp=2", "dp=2,ep=2,optimizer=sgd", ()),
        (MIXTRAL, "dp=2", "dp=2,ep=2,zero=1,optimizer=muon", ()),
        (MIXTRAL, "dp=1", "cp=2", GOLDFISH),
        (SMALL, "dp=1", "cp=2,offload=optimizer,zero=1", ()),
        (SMALL, "dp=1", "cp=2,context_kind=all_gather", GOLDFISH),
        (SMALL, "dp=1", "cp=2,context_kind=ulysses", GOLDFISH),
        (SMALL, "dp=1", "cp=2,optimizer=muon", ()),
        (SMALL, "dp=1", "cp=2,context_kind=all_gather,optimizer=lomo", ()),
        (SMALL, "dp=1", "cp=2,context_kind=ulysses,optimizer=mezo", ()),
        (SMALL, "dp=1", f"{TWO_WAY},optimizer=muon", GOLDFISH),
        (MIXTRAL, "dp=1", f"{TWO_WAY},offload=optimizer,overlap=none", ()),
    ],
)
def test_experts_and_parts_of_sequences_train_and_evaluate_as_without_them(
    model: str, plan: str, split: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    """In float64, the losses of training and of held-out sequences."""
    text = tmp_path / "text"
    text.write_text("As without, so with. " * 300, encoding="utf-8")
    evaluated = ("--eval-data", str(text), "--eval-every", "2", "--eval-batches", "2")
    how = ("--steps", "3", *evaluated, *words)
    same = "".join(f",{word}" for word in split.split(",") if word.startswith("optimizer="))
    alone = record_of(run(model, f"{plan},precision=fp64{same}", *how))
    found = record_of(run(model, f"{split},precision=fp64", *how))
    assert found["losses"] == pytest.approx(alone["losses"], abs=EXACT)
    losses = [[each["eval_loss"] for each in record["evaluations"]] for record in (found, alone)]
    assert losses[0] == pytest.approx(losses[1], abs=EXACT)
    assert len(losses[0]) == 2


@pytest.mark.parametrize(
    ("model", "split", "other"),
    [
        (SMALL, "cp=2,zero=1", "dp=2"),
        (SMALL, "cp=2,context_kind=all_gather", "cp=2,context_kind=ulysses"),
        (SMALL, "cp=2,context_kind=ulysses,zero=3", "tp=2"),
        (MIXTRAL, "dp=2,ep=2,zero=1", "tp=2"),
        (MIXTRAL, "dp=2,ep=2,offload=optimizer", "cp=2"),
        (MIXTRAL, "dp=2,ep=2,zero=1,optimizer=muon", "tp=2,optimizer=muon"),
        (MIXTRAL, f"{TWO_WAY},zero=1", "dp=2,ep=2"),
        (SMALL, "tp=2,zero=1", TWO_WAY),
        (SMALL, f"tp=2,{TWO_WAY},zero=1", f"dp=2,{TWO_WAY[:-1]}1"),
    ],
)
def test_a_run_goes_on_from_its_checkpoint_under_the_same_plan_and_another(
    model: str, split: str, other: str, tmp_path: Path
) -> None:
    """To the bit under the same plan, to 1e-9 under another."""
    split, other = (f"{each},precision=fp64" for each in (split, other))
    whole = record_of(run(model, split, "--steps", "6"))["losses"]
    folder, copy = tmp_path / "run", tmp_path / "copy"
    saves = ("--save", str(folder), "--save-every", "2")
    record_of(run(model, split, "--steps", "4", *saves))
    shutil.copytree(folder, copy)
    again = ("--steps", "6", "--resume")
    assert record_of(run(model, split, *saves, *again))["losses"] == whole[4:]
    elsewhere = record_of(run(model, other, "--save", str(copy), *again))["losses"]
    assert elsewhere == pytest.approx(whole[4:], abs=EXACT)


@pytest.mark.parametrize(
    ("model", "plan", "named"),
    [
        (MIXTRAL, "dp=2,ep=2,optimizer=mezo", "optimizer=mezo"),
        (MIXTRAL, "dp=2,ep=2,optimizer=lomo", "optimizer=lomo"),
    ],
)
def test_what_experts_and_latent_attention_do_not_go_with_is_refused_by_name(
    model: str, plan: str, named: str
) -> None:
    said = run(model, plan)
    assert said.status == 3
    assert_names(said.sentence, named)
