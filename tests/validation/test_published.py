"""Published runs: how a row is read, what its dialect makes of it, and what the figures mean."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from simulator.costs.kernels import Kernels
from simulator.stacks import EXECUTOR
from simulator.stacks.job import Job
from simulator.uncertainty.ranking import ranked
from tests.messages import assert_names, names
from tests.simgpt.face import assert_golden, simgpt
from topologies.machine import Machine
from topologies.machine_files import load_machine
from validation.published.case import Case, NoCaseError, case_of
from validation.published.measured_step import published_flops
from validation.published.outcome import held_out
from validation.published.predicting import (
    WORTH_A_POOL,
    LostProcessError,
    Task,
    predict_runs,
    predicted,
    processes,
)
from validation.published.runs import RUNS, SWEEPS, PublishedRun, RunsError, read_runs, runs_of
from workload.gpt import GPT, find_model
from workload.plan import Plan
from workload.plan_text import parse_plan

SWEPT = ("nanotron-sweep-", "hagemann-")
COLUMNS = {
    **{"id": "a-1", "source": "A. Author (arXiv 1)", "machine": "Mine", "gpu": "A100-SXM4-80GB"},
    **{"gpus_total": "8", "gpus_per_node": "8", "framework": "Megatron-LM", "model": "GPT"},
    **{"layers": "4", "hidden": "1024", "heads": "16", "seq_len": "1024", "vocab": "50257"},
    **{"activation": "gelu", "global_batch_seqs": "16", "micro_batch": "2", "tp": "2", "pp": "2"},
    **{"dp": "2", "measured_step_s": "0.02", "fabric": "infiniband"},
}


def run(**cells: str) -> PublishedRun:
    return PublishedRun({**COLUMNS, **cells})


def case(**cells: str) -> Case:
    return case_of(run(**cells))


def table(*rows: dict[str, str]) -> list[str]:
    every = [{**COLUMNS, **row} for row in rows]
    names = list(dict.fromkeys(name for row in every for name in row))
    lines = [",".join(row.get(name, "") for name in names) for row in every]
    return [",".join(names), *lines]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    rows = (
        {"mood": "kept"},
        {"id": "a-2", "tp": "4", "dp": "1", "measured_step_s": "0.03"},
        {"id": "a-3", "pp": "1", "dp": "4", "measured_step_s": "0.014"},
        {"id": "b-1", "source": "B. Author", "notes": "[plan:partial]"},
        {"id": "b-2", "source": "B. Author", "tp": ""},
        {"id": "b-3", "source": "B. Author", "gpu": "TPUv4"},
        {"id": "b-4", "source": "B. Author", "measured_step_s": ""},
        {"id": "b-5", "source": "B. Author", "recompute": "some"},
    )
    path.write_text("\n".join(table(*rows)) + "\n", encoding="utf-8")
    return path


def test_a_small_file_as_people_read_it(small: Path) -> None:
    said = simgpt("validate", "published", "--data", str(small), "--source", "author")
    assert said.status == 0
    assert_golden("validate-published.txt", said.out)


def test_every_row_keeps_its_place_with_a_status_and_a_reason(small: Path) -> None:
    record = json.loads(simgpt("validate", "published", "--data", str(small), "--json").out)
    rows = record["rows"]
    wanted = ("id", "source", "measured_step_s", "predicted_step_s", "error", "status", "reason")
    assert all(key in row for row in rows for key in wanted)
    assert [row["id"] for row in rows] == ["a-1", "a-2", "a-3", "b-1", "b-2", "b-3", "b-4", "b-5"]
    assert [row["status"] for row in rows] == [
        *("predicted", "predicted", "predicted", "predicted"),
        *("best plan", "unsupported", "no measurement", "unsupported"),
    ]
    assert_names(rows[4]["reason"], "tp")
    assert_names(rows[5]["reason"], "TPUv4")
    assert_names(rows[7]["reason"], "recompute", "some", "none", "selective", "full")
    assert rows[0]["columns"]["mood"] == "kept"
    assert rows[0]["error"] == pytest.approx(rows[0]["predicted_step_s"] / 0.02 - 1)


def test_the_json_has_means_by_source_over_scored_rows_alone(small: Path) -> None:
    record = json.loads(simgpt("validate", "published", "--data", str(small), "--json").out)
    errors = [row["error"] for row in record["rows"][:3]]
    every = [*errors, found := record["rows"][4]["error"]]
    assert record["mape"] == pytest.approx(sum(map(abs, every)) / 4)
    assert record["median_error"] == pytest.approx(median(map(abs, every)))
    first, second = record["by_source"].values()
    assert (first["rows"], second["rows"], second["mape"]) == (3, 1, pytest.approx(abs(found)))
    assert first["bias"] == pytest.approx(sum(errors) / 3)
    assert record["ranking"]["groups"] == 1


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"layers": "many"}, ("layers", "many", "1")),
        ({"gpus_total": "1e400"}, ("gpus_total", "1e400", "1")),
        ({"nic_gbps": "-1"}, ("nic_gbps", "-1", "0")),
        ({"measured_step_s": "nan"}, ("measured_step_s", "nan", "0")),
        ({"tp": "2.5", "pp": "x"}, ("tp", "2.5")),
    ],
)
def test_a_cell_that_cannot_be_read_refuses_its_row_and_leaves_the_others(
    row: dict[str, str], named: tuple[str, ...]
) -> None:
    found = runs_of(table(row, {"id": "a-2"}), "x")
    assert [bool(run.refusal) for run in found] == [True, False]
    assert_names(found[0].refusal, *named)
    outcomes = predict_runs(found, lambda _: None)
    assert [outcome.predicted_s is None for outcome in outcomes] == [True, False]
    assert outcomes[0].reason == found[0].refusal


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8"])
def test_a_precision_may_be_a_recipe_of_narrow_formats(recipe: str) -> None:
    (row,) = runs_of(table({"precision": recipe}), "x")
    assert row.refusal == ""
    plan = case_of(row).job.plan
    assert (plan.training.precision, plan.training.recipe) == ("bf16", recipe)


def test_a_heads_width_is_read_from_its_column_or_from_the_notes() -> None:
    """Heads would have 64, a sixteenth of the hidden size."""
    widths = [
        case(head_width="128").asked.attention.head_width,
        case(notes="head_dim 128").asked.attention.head_width,
        case(head_width="128", notes="head_dim 96").asked.attention.head_width,
    ]
    assert widths == [128, 128, 128]


def test_a_row_without_a_name_is_refused_with_its_file() -> None:
    with pytest.raises(RunsError, check=names("x", "2", "id")):
        runs_of(table({"id": ""}), "x")


def test_files_without_rows_columns_or_a_name_of_their_own_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunsError, check=names("x", "3", "id", "a-1", "2")):
        runs_of(table({}, {}), "x")
    with pytest.raises(RunsError, check=names("x", "id", "source")):
        runs_of(["id,gpu", "a,b"], "x")
    with pytest.raises(RunsError, check=names("x")):
        runs_of(["id"], "x")
    said = simgpt("validate", "published", "--data", str(tmp_path / "no.csv"))
    assert said.status == 2
    assert_names(said.sentence, "no.csv", os.strerror(errno.ENOENT))
    said = simgpt("validate", "published", "--source", "nobody")
    assert_names(said.sentence, "nobody", "Bang et al.")


def kernels_of(found: Case) -> Kernels:
    """Those of a case on the A100 that rows have unless they say otherwise."""
    job = found.job
    return job.stack.kernels(job.gpt, job.plan, load_machine("dgx-a100"))


def test_megatron_of_2022_overlaps_input_gradients_and_fuses_dropout() -> None:
    found = case(source="arXiv 2205.05198", recompute="selective", sequence_parallel="yes")
    assert str(found.job.plan) == ("tp=2,pp=2,dp=2,mbs=2,sp=true,recompute=selective,overlap=oar")
    assert "down.dropout" in kernels_of(found).behaviour.fused
    gpt = found.job.gpt
    assert (gpt.vocab, gpt.dropout) == (50432, 0.1)  # 50,257 up to 197 * 128 * 2


def test_megatron_of_2021_sums_16_bit_gradients_beside_the_backward_pass_without_a_pipeline() -> (
    None
):
    words = {"source": "D. Narayanan (arXiv 2104.04473)", "micro_batch": "1"}
    alone, piped = case(**words, pp="1", dp="4"), case(**words, pp="16", dp="1", gpus_total="32")
    assert (alone.job.plan.training.overlap, alone.job.plan.training.gradients) == (("dp",), "bf16")
    assert (piped.job.plan.training.overlap, piped.job.plan.training.gradients) == ((), "bf16")


def test_vtrains_vocabulary_is_cut_to_the_ranks_and_not_padded() -> None:
    words = {"source": "vTrain", "framework": "Megatron-DeepSpeed"}
    assert case(**words, tp="1", dp="4").asked.vocab == 50257
    assert case(**words, tp="8", pp="1", dp="1", micro_batch="16").asked.vocab == 8 * 6282


def test_megatrons_fused_softmax_wants_heads_in_fours_and_2048_tokens() -> None:
    def softmax(**cells: str) -> tuple[int, float]:
        behaviour = kernels_of(case(**cells, flash_attention="no", pp="1")).behaviour
        return dict(behaviour.launches).get("softmax", 1), dict(behaviour.passes)["softmax"]

    eight = {"tp": "8", "dp": "1"}  # two heads for each rank, whose sequences count together
    assert softmax(**eight, micro_batch="1") == (5, 3.63)
    assert softmax(**eight, micro_batch="2") == (1, 0.75)
    assert softmax(tp="2", dp="4", seq_len="4096") == (5, 3.63)
    assert softmax(tp="2", dp="4", seq_len="2048") == (1, 0.75)


def test_blooms_ends_count_as_layers_of_a_pipeline() -> None:
    notes = "embedding/head count as pipeline layers; ALiBi, embedding LayerNorm"
    found = case(framework="Megatron-DeepSpeed", source="BigScience", layers="6", notes=notes)
    assert found.job.plan.pipeline.ends_as_layers
    assert (found.job.gpt.positions, found.job.gpt.embedding_norm) == ("alibi", True)


def test_torchtitans_selective_recomputes_per_op_and_shards_all() -> None:
    found = case(
        framework="torchtitan", tp="1", pp="1", dp="8", recompute="selective", activation="swiglu"
    )
    assert (found.job.plan.training.recompute, found.job.plan.zero) == ("per_op", 3)
    assert (found.job.gpt.norm, found.job.gpt.tied) == ("rmsnorm", False)


def test_accelerate_shards_all_sums_in_bf16_and_pads_no_vocabulary() -> None:
    cells = {"tp": "1", "pp": "1", "dp": "8", "activation": "swiglu"}
    found = case(framework="Hugging Face Accelerate 1.2, transformers", **cells)
    assert (found.job.stack.name, found.job.plan.zero) == ("accelerate", 3)
    assert (found.job.plan.training.gradients, found.job.gpt.vocab) == ("bf16", 50257)
    assert case(framework="accelerate with DeepSpeed", **cells).job.stack.name == "other"


def test_gpt_neox_of_2022_sends_whole_gradients_between_stages() -> None:
    cells = {"framework": "GPT-NeoX", "activation": "gelu"}
    names = [
        case(**cells, source=source).job.stack.name
        for source in ("Black et al., GPT-NeoX-20B (arXiv 2204.06745)", "A. Author (arXiv 1)")
    ]
    assert names == ["gpt-neox-2022", "gpt-neox"]


def test_context_parallelism_is_an_axis_of_its_own() -> None:
    found = case(tp="1", pp="1", cp="4", dp="2")
    assert (found.job.plan.cp, found.job.plan.dp, found.job.plan.batch) == (4, 2, 16)
    assert found.job.gpt.sequence == found.asked.sequence == 1024


def test_a_batch_of_uneven_micro_batches_is_scaled() -> None:
    found = case(tp="1", pp="1", dp="8", global_batch_seqs="24", micro_batch="2")
    assert (found.job.plan.batch, found.scale) == (32, 0.75)


def test_degrees_that_do_not_give_the_gpus_are_no_plan() -> None:
    with pytest.raises(NoCaseError, check=names("gpus_total", "8")):
        case(dp="3")


def test_a_row_without_a_plan_gets_the_one_that_is_found_for_what_it_fixes() -> None:
    asked: list[object] = []

    def find(gpt: GPT, machine: Machine, devices: int, batch: int, fixed: Any) -> Plan:
        asked.extend((gpt.layers, machine.devices_per_node, devices, batch, fixed["recompute"]))
        return Plan(dp=devices, batch=batch, mbs=1)

    found = case_of(run(tp="", recompute="full"), find)
    assert asked == [4, 8, 8, 16, "full"]
    assert (found.job.plan.dp, found.searched) == (8, True)
    (said,) = found.remarks
    assert_names(said, "tp")
    (outcome,) = predict_runs([run(tp="", recompute="full")], lambda _: None, find)
    assert (outcome.status, outcome.scored) == ("best plan", True)


def test_nanotron_with_zero_handles_each_ranks_slice_of_each_weight_by_itself() -> None:
    row = run(framework="nanotron 0.5", zero_stage="1", tp="1", pp="2", dp="4", activation="swiglu")
    found = case_of(row)
    assert kernels_of(found).behaviour.launches_of_slice == 2
    (outcome,) = predict_runs([row], lambda _: None)
    # Two for each of six weights, two layers, four ranks; an A100's launch takes 4.5 us.
    assert outcome.breakdown_s["optimizer"] > 2 * 6 * 2 * 4 * 4.5e-6
    assert sum(outcome.breakdown_s.values()) == pytest.approx(outcome.predicted_s)


def test_published_flops_count_as_their_tags_say() -> None:
    gpt = case().asked
    square = 12 * 4 * 1024 * 1024 * 1024
    assert published_flops("[flops:model]", gpt, 1) == gpt.model_flops(1)
    assert published_flops("[flops:hardware x]", gpt, 1) == gpt.hardware_flops(1)
    assert published_flops("[flops:model-causal]", gpt, 1) == gpt.model_flops(1) - square / 2


def test_regret_is_what_our_pick_takes_longer_than_the_best() -> None:
    assert ranked([(1.0, 11.0), (2.0, 10.0), (3.0, 30.0)]).regret == pytest.approx(0.1)


def test_the_shipped_rows_can_all_be_read_and_a_tenth_is_held_out() -> None:
    runs = read_runs()
    assert len(runs) == 1123
    assert 0.05 < sum(held_out(each.id) for each in runs) / len(runs) < 0.15


def test_of_two_sweeps_the_table_has_one_row_of_eight_and_the_other_file_the_rest() -> None:
    """Those drawn by their ids, of plain training steps; the sweeps have 1,097 rows."""
    table, rest = (
        [each for each in read_runs(None, name) if each.id.startswith(SWEPT)]
        for name in (RUNS, SWEEPS)
    )
    assert len(table) + len(rest) == 1097
    assert all(map(is_drawn, table))
    assert not any(map(is_drawn, rest))


def is_drawn(run: PublishedRun) -> bool:
    digest = hashlib.sha256(f"drawn:{run.id}".encode()).hexdigest()
    return int(digest, 16) % 8 == 0 and "NON-STANDARD" not in run.text("notes")


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of two processes, whatever this machine has."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.mark.usefixtures("two_cores")
def test_after_an_error_nothing_is_done_any_more(tmp_path: Path) -> None:
    """Of tasks that wait for a pipe that nobody opens, two are under way and others wait."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = partial(os.open, flags=os.O_RDONLY)
    with pytest.raises(KeyboardInterrupt), processes(WORTH_A_POOL) as each:
        assert next(each(reading, [tmp_path, *[pipe] * 39], 1)) > 0
        raise KeyboardInterrupt
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("two_cores")
def test_a_process_that_ends_is_said_in_one_sentence() -> None:
    with (
        pytest.raises(LostProcessError, check=names("ended (7)", "memory")),
        processes(WORTH_A_POOL) as each,
    ):
        list(each(os._exit, [7], 1))


@pytest.mark.usefixtures("two_cores")
def test_processes_save_what_they_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMGPT_CACHE", str(tmp_path))
    machine, plan = load_machine("perlmutter"), parse_plan("z=8,dp=2", batch=16)
    task = Task(Job(find_model("gpt-5b"), plan, EXECUTOR), machine)
    with processes(WORTH_A_POOL) as each:
        assert next(each(predicted, [task], 1)).step_s > 0
    assert list(tmp_path.rglob("*.sqlite"))


@pytest.mark.parametrize(("rows", "cores"), [(WORTH_A_POOL, {0}), (WORTH_A_POOL - 1, {0, 1})])
def test_few_rows_and_a_single_core_are_worth_no_pool(
    rows: int, cores: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    with processes(rows) as each:
        assert list(each(lambda _: os.getpid(), [0], 1)) == [os.getpid()]
