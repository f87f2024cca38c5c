"""Measured peaks: how rows are read, what is refused by name, and how far off predictions are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from simgpt.cli import cli
from simulator.stacks import EXECUTOR
from simulator.stacks.job import job_of
from simulator.uncertainty.fitting import Kind
from tests.messages import assert_names, names
from topologies.errors import SimgptError
from topologies.machine_files import load_machine
from validation.memory.golden_runs import (
    MORE_OF_CUBLAS,
    GoldenRun,
    NotExpressibleError,
    golden_runs,
)
from validation.memory.memory_questions import (
    ALLOCATED,
    DEVICE,
    RESERVED,
    Answer,
    MeasuredStage,
    answer,
    questions,
)
from validation.memory.memory_validation import MemoryRow, MemoryValidation, validate_memory
from workload.gpt import GPT
from workload.lowering import lower
from workload.plan import Plan
from workload.program import Program

MIB = 2**20
BY_ID = {run.id: run for run in golden_runs()}


def changed(**cells: str) -> GoldenRun:
    return GoldenRun({**BY_ID["mcore-008"].cells, **cells})


def test_a_row_is_the_plan_that_its_flags_say() -> None:
    job = BY_ID["mcore-008"].job
    assert str(job.plan) == ("pp=4,vpp=8,dp=2,mbs=1,zero=1,overlap=oar+dp+pp")
    gpt = job.gpt
    assert (gpt.layers, gpt.hidden, gpt.attention.kv_heads, gpt.vocab) == (32, 4096, 8, 131200)
    assert (gpt.tied, gpt.biases, gpt.dropout, gpt.positions) == (False, True, 0.1, "learned")


def test_a_row_with_experts_is_the_model_and_plan_that_its_flags_say() -> None:
    """Two ranks of x have halves of half of the experts, and two the halves of the rest."""
    job = BY_ID["mcore-702"].job
    assert (
        job.gpt.moe.experts,
        job.gpt.moe.topk,
        job.gpt.moe.expert_ffn,
        job.gpt.moe.shared_ffn,
    ) == (
        8,
        2,
        1024,
        512,
    )
    assert (job.plan.tp, job.plan.ep, job.plan.etp) == (4, 2, 2)
    assert job.plan.expert_axes == ("outer_tp",)
    gathers = BY_ID["mcore-617"].job
    assert (gathers.plan.experts.dispatcher, gathers.plan.etp) == ("all_gather", 1)
    assert gathers.gpt.moe.expert_ffn == gathers.gpt.ffn == 2048
    assert BY_ID["mcore-615"].job.plan.etp == 0
    few = {**BY_ID["mcore-702"].cells, "notes": ";moe-layer-freq=([0]*4+[1]*8);tp=1"}
    assert GoldenRun(few).job.gpt.moe.dense_layers == 4


def test_fp16_is_summed_in_16_bits_and_local_attention_is_unfused() -> None:
    plan = changed(precision="fp16", transformer_impl="local").job.plan
    assert (plan.training.gradients, plan.training.attention) == ("bf16", "unfused")


def test_copies_of_the_distributed_optimizer_are_runs_of_data_that_shard() -> None:
    optimizer = "adam|dist=1|overlap_grad_reduce=1|overlap_param_gather=1|instances=2"
    plan = changed(optimizer=optimizer, tp="2", pp="1", vpp="1").job.plan
    assert (plan.zero, plan.dp, plan.shard) == (1, 4, 2)


@pytest.mark.parametrize(
    ("cells", "named"),
    [
        (
            {"experts": "8", "moe_grouped_gemm": "1", "dispatcher": "flex"},
            ("dispatcher", "flex"),
        ),
        ({"mla": "1", "notes": " q-lora-rank=192;"}, ("--kv-lora-rank",)),
        ({"precision": "fp32+fp8(e4m3)"}, ("precision", "fp32")),
        ({"optimizer": "muon|dist=1"}, ("optimizer", "muon")),
        ({"recompute": "full/uniform/layers=2"}, ("full/uniform/layers=2",)),
        ({"notes": ";cross-entropy-fusion-impl=te;"}, ("--cross-entropy-fusion-impl", "te")),
        ({"gpus": "", "notes": ""}, ("GPUs",)),
    ],
)
def test_what_no_plan_stands_for_is_refused_by_name(
    cells: dict[str, str], named: tuple[str, ...]
) -> None:
    with pytest.raises(NotExpressibleError, check=names(*named)):
        _ = changed(**cells).job


def test_muon_and_latent_attention_are_read() -> None:
    assert BY_ID["mcore-690"].job.plan.training.optimizer == "muon"
    gpt = BY_ID["mcore-319"].job.gpt
    assert (gpt.latent.q_rank, gpt.latent.kv_rank, gpt.attention.head_width) == (192, 64, 16)
    assert (gpt.latent.rope_width, gpt.latent.value_width, gpt.biases, gpt.positions) == (
        8,
        16,
        False,
        "rope",
    )


def test_a_row_with_experts_names_the_column_that_it_lacks_or_that_is_no_number() -> None:
    cells = {**BY_ID["mcore-702"].cells}
    with pytest.raises(SimgptError, check=names("mcore-702", "topk", "few")):
        _ = GoldenRun({**cells, "topk": "few"}).job
    del cells["etp"]
    with pytest.raises(NotExpressibleError, check=names("experts", "etp")):
        _ = GoldenRun(cells).job


def test_a_cell_that_is_no_number_is_named() -> None:
    with pytest.raises(SimgptError, check=names("mcore-008", "layers", "many")):
        _ = changed(layers="many").job


def test_the_setting_of_cublas_adds_to_an_a100_alone() -> None:
    assert BY_ID["mcore-008"].library_bytes == MORE_OF_CUBLAS == 2 * (32 * MIB - 8_519_680)
    assert changed(platform_gpu="H100").library_bytes == 0
    assert changed(notes="").library_bytes == 0


def test_measures_are_allocated_reserved_and_of_the_device() -> None:
    found = Answer(peak_bytes=1000, unused=0.1, outside_bytes=50)
    assert [found.of(each) for each in (ALLOCATED, RESERVED, DEVICE)] == [1000, 1100, 1150]
    assert found.of(RESERVED, 100) == 1210


def test_each_source_says_what_it_measures() -> None:
    measures = {run.id: run.measure for run in questions(None)}
    assert measures["titan-001"] == RESERVED
    assert measures["jupiter-002"] == measures["primus-moe-010"] == DEVICE
    assert measures["nanotron-004"] == RESERVED  # its authors' table of all runs has 53.46 as such
    assert measures["zb-001"] == measures["mcore-008"] == ALLOCATED
    bytes_of = {run.id: run.measured_bytes for run in questions(None)}
    assert bytes_of["zb-001"] == 30 * 10**9
    assert bytes_of["lumi-001"] == int(32.9 * 2**30)


def test_the_allocator_sees_twice_as_many_micro_batches_as_stages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 8 micro-batches of 2 sequences on 2 ranks of data it sees 4: 16 sequences."""
    gpt = GPT.of(name="small", layers=2, hidden=64, heads=2, ffn=256, sequence=64, vocab=512)
    job = job_of(gpt, "pp=2,dp=2,mbs=2", EXECUTOR, devices=4, batch=32)
    seen: list[Plan] = []

    def lowered(gpt: GPT, plan: Plan, *how: int, **more: Any) -> Program:
        seen.append(plan)
        return lower(gpt, plan, *how, **more)

    monkeypatch.setattr("validation.memory.memory_questions.lower", lowered)
    answer(MeasuredStage(job, load_machine("dgx-h100"), 0))
    assert seen == [replace(job.plan, batch=16)]


def row(
    predicted: int, question: str = "", unused: float = 0.0, *, experts: bool = False
) -> MemoryRow:
    kind = Kind("a stack", "a family", experts=experts)
    own = question or str(predicted)
    return MemoryRow("r", "s", "p", own, "allocated", predicted, 100, unused, kind)


def test_a_verdict_is_wrong_where_the_error_is_larger_than_the_margin() -> None:
    found = MemoryValidation((row(103), row(97), row(112), row(100)), {})
    # Above by more than 2 %: 103 and 112; below by 2 % or more: 97. Of 4 rows and 2 devices each.
    assert found.wrong(0.02) == 3 / 8
    assert found.wrong(0.10) == 1 / 8
    assert found.mape == pytest.approx((3 + 3 + 12 + 0) / 400)
    some = MemoryValidation((row(112, experts=True), row(100)), {})
    assert (some.wrong(0.1), some.with_experts.wrong(0.1)) == (1 / 4, 1 / 2)
    assert some.as_dict()["wrong_verdicts_of_experts"]["0.2"] == 0


def test_a_question_counts_once_with_its_median_row() -> None:
    found = MemoryValidation((row(101, "q"), row(109, "q"), row(103, "q"), row(90)), {})
    assert sorted(each.predicted_bytes for each in found.questions) == [90, 103]


def test_what_the_allocator_leaves_unused_is_that_of_questions() -> None:
    rows = tuple(row(100 + n, unused=n / 100) for n in range(11))
    assert MemoryValidation(rows, {}).unused == (0.05, 0.09)


def some_golden(tmp_path: Path, *ids: str) -> Path:
    import csv

    file = tmp_path / "golden.csv"
    with file.open("w", newline="") as lines:
        table = csv.DictWriter(lines, list(BY_ID[ids[0]].cells))
        table.writeheader()
        table.writerows(BY_ID[name].cells for name in ids)
    return file


def test_seven_billion_parameters_come_out_within_three_percent(tmp_path: Path) -> None:
    found = validate_memory(some_golden(tmp_path, "mcore-008", "mcore-010", "mcore-011"))
    assert len(found.rows) == 3
    assert max(abs(each.error) for each in found.rows) < 0.03


def test_the_command_prints_rows_verdicts_and_what_was_refused(tmp_path: Path) -> None:
    file = some_golden(tmp_path, "mcore-429", "mcore-371")
    shown = CliRunner().invoke(cli, ["validate", "memory", "--data", str(file), "--rows"])
    assert shown.exit_code == 0
    assert "mcore-429" in shown.output
    assert_names(shown.output, "1", "--defer-embedding-wgrad-compute")


def test_runs_that_are_refused_are_counted_by_the_reason(tmp_path: Path) -> None:
    """Two runs have an option that no plan stands for, and one uses CUDA graphs."""
    found = validate_memory(some_golden(tmp_path, "mcore-371", "mcore-372", "mcore-703"))
    assert not found.rows
    assert sorted(found.refused.values()) == [1, 2]


def test_a_file_of_other_columns_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.csv"
    file.write_text("a,b\n1,2\n")
    shown = CliRunner().invoke(cli, ["validate", "memory", "--data", str(file)])
    assert shown.exit_code != 0


@pytest.mark.slow
def test_golden_rows_are_four_percent_off_and_few_verdicts_at_a_margin_wrong() -> None:
    found = validate_memory()
    golden = [row for row in found.rows if row.source.startswith("Megatron-LM, tests of its CI")]
    assert len(golden) > 330
    assert sum(abs(each.error) for each in golden) / len(golden) < 0.04
    allocated = tuple(row for row in found.rows if row.measure == ALLOCATED)
    assert MemoryValidation(allocated, {}).wrong(0.05) < 1 / 12
    assert MemoryValidation(allocated, {}).with_experts.wrong(0.1) < 1 / 10
