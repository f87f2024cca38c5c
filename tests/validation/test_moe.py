"""Published runs with experts: how their columns are read, and what is said of the predictions."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from simulator.stacks import load_stack
from tests.messages import assert_names, names
from tests.simgpt.face import assert_golden, simgpt
from tests.simulator.test_sent_once import share_of
from topologies.files.reading import shipped_text, shipped_toml
from topologies.machine_files import load_machine
from validation.moe.rows import LONG, REMARKS, SHIPPED, moe_runs_of, read_moe_runs
from validation.published import case as cases
from validation.published.case import NoCaseError, case_of
from validation.published.dialect import says
from validation.published.outcome import held_out
from validation.published.run_machine import machine_of
from validation.published.runs import PublishedRun
from workload.gpt import GPT, find_model
from workload.plan import Plan

BRIDGE = "NVIDIA Megatron-Bridge performance summary"
OF_RECIPES = {"source": BRIDGE, "framework": "Megatron-Bridge", "table_or_figure": "26.04"}
OF_LAUNCHES = {
    **{"source": "NVIDIA DGX Cloud", "framework": "NeMo / Megatron-Core", "gpu": "GB200"},
    **{"model": "DeepSeek-V3 671B", "table_or_figure": "deepseek_v3 README, v25.05.05"},
}
COLUMNS = {
    **{"id": "a-1", "source": "A. Author (arXiv 1)", "table_or_figure": "1", "machine": "Mine"},
    **{
        "gpu": "H100-SXM5-80GB",
        "gpus_total": "8",
        "gpus_per_node": "8",
        "framework": "Megatron-LM",
    },
    **{"model": "Small", "layers": "4", "hidden": "512", "heads": "8", "kv_heads": "4"},
    **{"attention": "gqa", "dense_ffn": "", "moe_layers": "4", "experts": "8", "topk": "2"},
    **{"moe_ffn": "1024", "shared_experts": "0", "seq_len": "1024", "vocab": "32000"},
    **{"precision": "bf16", "global_batch_seqs": "16", "micro_batch": "1", "tp": "1", "pp": "1"},
    **{"vpp": "1", "cp": "1", "ep": "8", "etp": "", "dp": "8", "zero_stage": "1"},
    **{"recompute": "none", "dispatcher": "", "routing": "", "status": "ok", "step_s": "0.05"},
    **{"tflops_per_gpu": "", "peak_mem_GiB": "1.5", "notes": "[plan:full]"},
}
PUBLISHED = {  # billions, of the model cards and papers that workload/models.toml names
    **{"mixtral-8x7b": 46.7, "mixtral-8x22b": 140.6, "qwen3-30b-a3b": 30.5},
    **{"qwen3-235b-a22b": 235.0, "gpt-oss-20b": 20.9, "gpt-oss-120b": 116.8},
    **{"llama-4-maverick": 400.0, "grok-1": 314.0, "x-moe-small": 10.1, "x-moe-medium": 55.2},
    **{"x-moe-large": 201.4, "x-moe-super": 545.4},
}


@pytest.fixture
def fitting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read as if they fitted: counting the bytes of many layers takes seconds."""
    monkeypatch.setattr(cases, "share_of_memory", lambda *_: 0.5)


def run(**cells: str) -> PublishedRun:
    (row,) = moe_runs_of(lines(cells), "x")
    return row


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_the_published_parameters(name: str) -> None:
    assert find_model(name).parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=6e-3)


def test_active_parameters_are_those_that_the_names_say() -> None:
    for name, active in (("qwen3-30b-a3b", 3.3), ("qwen3-235b-a22b", 22.0), ("llama-4-scout", 17)):
        assert find_model(name).active_parameters / 1e9 == pytest.approx(active, rel=0.02)


def test_a_rows_columns_give_the_model_and_the_plans_words() -> None:
    layers = {"moe_layers": "3", "dense_ffn": "2048", "attention": "gqa head 128"}
    case = case_of(run(shared_experts="2", **layers))
    gpt = case.asked
    assert (gpt.moe.experts, gpt.moe.topk, gpt.moe.expert_ffn, gpt.ffn) == (8, 2, 1024, 2048)
    assert (gpt.moe.shared_ffn, gpt.moe.dense_layers, gpt.width) == (2048, 1, 128)
    assert (gpt.activation, gpt.norm, gpt.biases) == ("swiglu", "rmsnorm", False)
    plan = case.job.plan
    assert (plan.ep, plan.dp, plan.etp, plan.zero) == (8, 8, 0, 1)


def test_latent_attention_has_rope_and_no_biases_whatever_the_framework() -> None:
    gpt = case_of(run(attention="mla", kv_heads="", framework="something new")).asked
    assert (gpt.latent.kv_rank, gpt.positions, gpt.biases) == (512, "rope", False)


def test_a_row_that_does_not_say_how_experts_are_split_has_no_case() -> None:
    with pytest.raises(NoCaseError, check=names("ep")):
        case_of(run(ep=""))


def test_without_a_width_of_dense_layers_the_experts_is_taken() -> None:
    assert case_of(run()).asked.ffn == 1024


def test_experts_lie_over_tensor_parallelism_unless_they_are_split() -> None:
    over, split = (run(tp="2", dp="4", ep=ep, etp=etp) for ep, etp in (("8", ""), ("4", "2")))
    folded, plain = case_of(over).job.plan, case_of(split).job.plan
    assert (folded.etp, folded.ep, folded.sp) == (1, 8, True)
    assert (plain.etp, plain.ep) == (0, 4)


@pytest.mark.parametrize("tp", ["1", "2", "4"])
def test_openeurollms_jobs_split_experts_as_all_else_and_take_flash_attention(tp: str) -> None:
    """Their configuration leaves the expert tensor parallelism out, and names the backend."""
    own = {"source": "OpenEuroLLM oellm-autoexp JUPITER, Qwen3 30B-A3B", "heads": "8"}
    job = case_of(run(**own, tp=tp, dp=str(8 // int(tp)), ep=str(8 // int(tp)))).job
    assert (job.plan.etp or job.plan.tp, job.plan.tp) == (int(tp), int(tp))
    assert job.stack.name == "megatron-core-flash"


def test_a_dispatcher_that_gathers_tokens_is_the_plans() -> None:
    plans = [case_of(run(dispatcher=word)).job.plan for word in ("AllGather", "alltoall", "")]
    assert [plan.experts.dispatcher for plan in plans] == [
        "all_gather",
        *(plans[2].experts.dispatcher,) * 2,
    ]


def test_every_other_layer_has_experts_in_llama_4() -> None:
    gpt = case_of(run(model="Llama-4 Maverick 400B", moe_layers="2")).asked
    assert (gpt.moe.expert_every, gpt.moe.dense_layers) == (2, 0)


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Nemotron_3_Super", "nemotron-3-super"),
        ("Nemotron_3_5_Lightning", "nemotron-3.5-lightning"),
    ],
)
def test_hybrids_of_the_recipes_have_two_depths_that_share_a_module(
    name: str, preset: str, fitting: None
) -> None:
    """The row says no more of the layers; what it says of routing replaces what the preset has."""
    like = find_model(preset)
    cells = {"attention": "hybrid Mamba-2 + gqa", "model": name, "framework": "Megatron-Bridge"}
    empty = {"layers": "", "hidden": "", "heads": "", "kv_heads": "", "vocab": "", "experts": ""}
    empty |= {"topk": "", "moe_ffn": "", "dense_ffn": "", "moe_layers": "", "shared_experts": ""}
    gpt = case_of(run(**cells, **empty, seq_len="8192")).asked
    assert (gpt.mtp.layers, gpt.mtp.pattern, gpt.mtp.shared) == (2, "*E", True)
    assert gpt.parameters == like.parameters


@pytest.mark.parametrize(
    ("cells", "named"),
    [
        ({"attention": "compressed sparse"}, ("attention", "compressed sparse")),
        ({"attention": "gated delta net"}, ("attention", "gated delta net")),
        ({"precision": "fp6"}, ("precision", "fp6", "bf16", "fp16", "fp8", "fp32")),
        ({"recompute": "everything"}, ("recompute", "everything", "none", "selective", "full")),
    ],
)
def test_what_simgpt_does_not_have_is_said_by_name(
    cells: dict[str, str], named: tuple[str, ...]
) -> None:
    assert_names(run(**cells).refusal, *named)


@pytest.mark.parametrize(
    ("cell", "read"),
    [
        *[("core_attn", "selective"), ("moe_act, layernorm", "layernorm+moe_act"), ("", "")],
        *[("selective: mla_up_proj,mlp,moe", "mla_up_proj+mlp+moe"), ("full", "full")],
    ],
)
def test_recomputed_modules_are_read_in_any_order(cell: str, read: str) -> None:
    assert run(recompute=cell).text("recompute") == read


@pytest.mark.parametrize("precision", ["mxfp8", "fp8-mx", "fp8-cs"])
def test_scalings_of_fp8_count_as_fp8_with_a_remark(precision: str) -> None:
    row = run(precision=precision)
    assert (row.text("precision"), row.refusal) == ("fp8", "")
    assert "fp8" in row.text(REMARKS)


@pytest.mark.parametrize("column", ["ep", "moe_ffn", "shared_experts", "gpus_per_node", "step_s"])
def test_a_row_with_a_cell_that_is_no_number_is_refused_where_it_enters(column: str) -> None:
    field = {"moe_ffn": "expert_ffn", "step_s": "measured_step_s"}.get(column, column)
    assert_names(run(gpu="GB200", **{column: "many"}).refusal, field, "many")


@pytest.mark.parametrize(
    ("framework", "model", "dispatcher", "split"),
    [
        ("DeepSpeed-MoE", "X-MoE Large", "dense", (1, 256)),
        ("DeepSpeed-TED", "X-MoE Large", "dense", (2, 128)),
        ("Tutel", "X-MoE Small", "sparse", (1, 64)),
    ],
)
def test_other_systems_of_x_moes_figure_have_padded_places(
    framework: str, model: str, dispatcher: str, split: tuple[int, int]
) -> None:
    unsaid = dict.fromkeys(("tp", "ep", "dp", "layers", "moe_layers", "dense_ffn", "kv_heads"), "")
    about = {"source": "X-MoE", "framework": framework, "model": model, "gpus_total": "256"}
    sizes = {"experts": "64" if split[1] == 64 else "256", "gpu": "MI250X GCD-64GB"}
    case = case_of(run(**unsaid, **about, **sizes, machine="Frontier", global_batch_seqs="1024"))
    plan = case.job.plan
    assert (case.asked.moe.capacity, plan.experts.dispatcher) == (1.25, dispatcher)
    assert (plan.tp, plan.ep, plan.expert_parts) == (*split, plan.tp)


def test_modules_that_run_again_are_parts_and_scales_are_said_to_be_left_out() -> None:
    found = run(recompute="layernorm,moe_act", precision="mxfp8")
    assert (found.text("recompute"), found.text("precision")) == ("layernorm+moe_act", "fp8")
    assert_names(found.text(REMARKS), "mxfp8", "fp8", "32")
    assert case_of(found).job.plan.training.recompute == "layernorm+moe_act"


def test_rows_in_nvfp4_have_its_recipe_and_what_stays_in_16_bits_is_said() -> None:
    found = run(precision="nvfp4", gpu="GB200", machine="DGX-GB200")
    plan = case_of(found).job.plan
    assert (plan.training.precision, plan.training.recipe) == ("bf16", "nvfp4")
    assert_names(found.text(REMARKS), "nvfp4", "14", "bf16")
    assert not found.refusal


def test_gpt_oss_has_windows_sinks_biases_and_its_clamped_activation() -> None:
    gpt = case_of(run(model="GPT OSS 120B")).asked
    assert (gpt.attention.window, gpt.attention.global_every, gpt.attention.sinks, gpt.biases) == (
        128,
        2,
        True,
        True,
    )
    assert (gpt.activation, gpt.norm) == ("clamped_swiglu", "rmsnorm")
    assert gpt.attention.rope_scaling.startswith("yarn:factor=32:")


@pytest.mark.parametrize(("gpu", "flash"), [("GB200", "no"), ("H100", "")])
def test_latent_attention_on_blackwell_in_2025_has_no_fused_kernel(gpu: str, flash: str) -> None:
    about = {"source": "NVIDIA DGX Cloud", "table_or_figure": "deepseek_v3 README, v25.05.05"}
    found = run(model="DeepSeek-V3 671B", framework="NeMo", gpu=gpu, **about)
    assert found.text("flash_attention") == flash


@pytest.mark.parametrize(
    ("cells", "mtp", "capacity"),
    [
        (OF_RECIPES | {"model": "DeepSeekV3", "gpu": "GB200"}, 1, 0.0),
        (OF_RECIPES | {"model": "DeepSeekV3 (w/o MTP)", "gpu": "GB200"}, 0, 0.0),
        ({"source": BRIDGE, "model": "Qwen3", "routing": "token drop"}, 0, 1.0),
        (OF_LAUNCHES, 1, 1.0),
    ],
)
def test_a_second_token_and_dropped_ones_are_those_of_the_recipe(
    cells: dict[str, str], mtp: int, capacity: float
) -> None:
    gpt = case_of(run(**cells)).asked
    assert (gpt.mtp.layers, gpt.moe.capacity) == (mtp, capacity)


def test_the_last_chunk_of_a_recipe_has_what_is_left() -> None:
    """61 layers on 16 chunks: 4 on each but the last, which has one; on 2 each has half."""
    shape = {**OF_RECIPES, "model": "DeepSeekV3", "gpu": "GB200", "layers": "61"}
    shape |= {"moe_layers": "58"}
    plan = case_of(run(**shape, pp="4", vpp="4", dp="2", ep="2")).job.plan
    assert plan.pipeline.stage_layers == (*(4,) * 15, 1)


def test_layers_of_chunks_are_those_that_are_told_where_there_are_as_many() -> None:
    cells = {"layers": "8", "moe_layers": "8", "pp": "2", "vpp": "2", "dp": "4", "ep": "4"}
    told = case_of(run(**cells, stage_layers="3,2,2,1")).job.plan
    other = case_of(run(**cells, stage_layers="5,3")).job.plan
    assert told.pipeline.stage_layers == (3, 2, 2, 1)
    assert not other.pipeline.stage_layers


def test_a_worked_example_says_its_batch_by_its_step_and_its_tokens() -> None:
    """10.052 s times 3,260 tokens/s of 64 GPUs are 256 sequences of 8,192."""
    assert round(10.052 * 3260 * 64 / 8192) == 256
    found = run(source="AMD Primus projection, tech blog", model="Mixtral 8x22B")
    assert found.whole("global_batch_seqs") == 256
    assert found.real("measured_step_s") == pytest.approx(256 * 8192 / 64 / 3534, abs=1e-3)


def test_amds_command_for_mixtral_runs_a_layer_of_each_chunk_again_one_sequence_at_a_time() -> None:
    cells = {"framework": "Primus / Megatron-LM", "micro_batch": "2", "recompute": ""}
    found = run(source="AMD Primus projection", model="Mixtral 8x22B", **cells)
    plan, stack = case_of(found).job.plan, case_of(found).job.stack
    assert (plan.mbs, plan.training.recompute) == (1, "full:1")
    assert stack == load_stack("megatron-core")  # whose matmuls add to gradients


def test_exchanges_lie_beside_the_other_micro_batch_where_a_row_says_so() -> None:
    titles = ("EP overlap on (search run)", "EP overlap off")
    assert [
        "a2a" in case_of(run(table_or_figure=each)).job.plan.training.overlap for each in titles
    ] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("table", "dispatcher", "stack", "overlaps"),
    [
        ("canonical recipe", "HybridEP, 32 SMs", "nemo+deepep+graphs=router", True),
        ("EP overlap off", "HybridEP", "nemo+deepep+graphs=router", False),
        ("alltoall fallback, 5 steps", "alltoall", "nemo+unfused-permutation+graphs=router", False),
        ("alltoall A/B: no EP overlap", "alltoall", "nemo+unfused-permutation", False),
    ],
)
def test_measured_runs_of_qwen3_have_what_the_notes_around_them_say(
    table: str, dispatcher: str, stack: str, overlaps: bool
) -> None:
    cells = {"source": "NVIDIA Megatron-Bridge, measured performance", "model": "Qwen3-30B-A3B"}
    cells |= {"framework": "Megatron-Bridge", "table_or_figure": table, "dispatcher": dispatcher}
    job = case_of(run(**cells)).job
    assert job.stack.name == stack
    assert ("a2a" in job.plan.training.overlap) == overlaps
    assert job.gpt.moe.balance_loss == 1e-3


@pytest.mark.parametrize(
    ("model", "loss"), [("Qwen3_235B_a22B", 1e-3), ("DeepSeekV3", 1e-4), ("GPT OSS 120B", 0)]
)
def test_experts_are_balanced_by_the_losses_of_the_recipes(model: str, loss: float) -> None:
    cells = {"source": BRIDGE, "framework": "Megatron-Bridge", "model": model}
    assert case_of(run(**cells)).asked.moe.balance_loss == loss


def test_gradients_are_summed_as_the_recipes_say() -> None:
    of_recipe = run(**OF_RECIPES, model="Qwen3_30B_a3B", gpu="GB200")
    assert case_of(of_recipe).job.plan.training.gradients == "bf16"
    assert case_of(run(source="another")).job.plan.training.gradients == "fp32"
    muon = case_of(run(**OF_RECIPES, model="Kimi_K2", gpu="GB200", ep="1"))
    assert (muon.job.plan.training.optimizer, muon.job.plan.training.gradients) == ("muon", "bf16")


def test_latent_attention_is_read_with_its_ranks() -> None:
    lite, large = (run(attention="mla", hidden=hidden) for hidden in ("2048", "7168"))
    assert [each.text("kv_rank") for each in (lite, large)] == ["512", "512"]
    assert [each.text("q_rank") for each in (lite, large)] == ["", "1536"]


def test_a_row_of_deepseek_chooses_from_groups() -> None:
    v3 = {"hidden": "7168", "experts": "256", "topk": "8", "kv_heads": ""}
    for size, groups in ((v3, (8, 4)), (v3 | {"experts": "384"}, (0, 0))):  # Kimi K2 has 384
        gpt = case_of(run(attention="mla", moe_ffn="2048", **size)).job.gpt
        assert (gpt.moe.router_groups, gpt.moe.router_topk_groups) == groups


def test_a_rack_is_a_node_with_a_nic_for_each_gpu_and_is_filled_as_predict_fills_it() -> None:
    machine = machine_of(run(gpu="GB300", gpus_total="256", gpus_per_node="4"))
    assert (machine.devices_per_node, machine.segments(256).per_node) == (72, 64)
    assert machine_of(run(gpu="GB300", gpus_total="1024", gpus_per_node="4")).nodes == 16
    nics = machine.node.nics
    assert nics.count == 72
    assert nics.bytes_per_s == pytest.approx(100e9)


def test_a_token_goes_once_to_each_node_or_rank() -> None:
    gpt = find_model("mixtral-8x7b").changed(experts=4, topk=2)
    alike: dict[str, Any] = {"batch": 64, "mbs": 1}
    # Two nodes of two experts: both of a token's two are on one with 1/6, so 2 (1 - 1/6) / 2.
    across = Plan.of(tp=4, dp=16, ep=4, **alike)
    assert share_of(gpt, across, 8) == pytest.approx(5 / 6, abs=1e-6)
    # A node's four ranks with an expert each: every copy is another rank's.
    assert share_of(gpt, Plan.of(dp=16, ep=4, **alike), 8) == 1
    # Two ranks with two experts each, as two nodes.
    assert share_of(gpt, Plan.of(dp=16, ep=2, **alike), 8) == pytest.approx(5 / 6)


def test_the_stack_sends_what_is_left() -> None:
    gpt, plan = find_model("qwen3-30b-a3b"), Plan(dp=16, ep=16, batch=16, mbs=1)
    machine = load_machine("dgx-h100")
    payloads = (load_stack(name).kernels(gpt, plan, machine).behaviour.payloads for name in STACKS)
    each, once = (dict(found) for found in payloads)
    assert "all_to_all" not in each
    assert once["all_to_all"] == share_of(gpt, plan, 8) < 0.26


STACKS = ("nemo", "nemo+deepep")


def test_every_reading_is_of_a_row() -> None:
    texts = (shipped_text("validation", f"data/{name}") for name in (SHIPPED, LONG))
    rows = [row for text in texts for row in csv.DictReader(StringIO(text))]
    document = shipped_toml("validation", "data/moe.toml")
    own = {ours: theirs for theirs, ours in document["columns"].items()}
    for reading in document["reading"]:
        when = {own.get(name, name): word for name, word in reading["when"].items()}
        found = [
            all(says(row.get(name, "").lower(), word) for name, word in when.items())
            for row in rows
        ]
        assert any(found) or "dispatcher" in when, reading


def test_a_tenth_of_the_rows_is_held_out() -> None:
    names = [each.id for each in read_moe_runs()]
    assert 0.08 < sum(map(held_out, names)) / len(names) < 0.13


@pytest.mark.slow
def test_a_small_file_as_people_read_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    large = {"layers": "160", "moe_layers": "160", "moe_ffn": "16384"}
    write(
        path,
        {},
        {"id": "a-2", "ep": "4", "dispatcher": "DeepEP", "step_s": "0.06", "peak_mem_GiB": ""},
        {"id": "a-3", "ep": "2", "step_s": "0.07"},
        {"id": "a-4", **large, "status": "oom", "step_s": ""},
        {"id": "a-5", "status": "oom", "step_s": ""},
        {"id": "b-1", "source": "B. Author", "attention": "compressed sparse"},
        {"id": "b-2", "source": "B. Author", "step_s": "", "tflops_per_gpu": "90"},
    )
    said = simgpt("validate", "moe", "--data", str(path), "--source", "author")
    assert said.status == 0
    assert_golden("validate-moe.txt", said.out)
    rows = json.loads(simgpt("validate", "moe", "--data", str(path), "--json").out)["rows"]
    keys = ("predicted_step_s", "low_step_s", "high_step_s", "predicted_peak_bytes", "fits")
    assert all(key in row for row in rows for key in keys)
    assert [row["fits"] for row in rows[:5]] == [True, True, True, False, True]
    assert_names(rows[5]["reason"], "attention")


def test_what_ran_out_of_memory_is_predicted_as_it_is_read() -> None:
    large = {"layers": "60", "moe_layers": "60", "seq_len": "32768", "micro_batch": "4"}
    failed, ran = (case_of(run(**large, status=status)) for status in ("oom", "ok"))
    assert not failed.fits
    assert not ran.fits
    assert failed.job.plan.training.recompute == "none" != ran.job.plan.training.recompute


def test_a_source_that_no_row_is_from_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    write(path, {})
    said = simgpt("validate", "moe", "--data", str(path), "--source", "nobody")
    assert_names(said.sentence, "nobody", "A. Author", "arXiv 1")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_shipped_rows_are_predicted_or_refused_by_name() -> None:
    record = json.loads(simgpt("validate", "moe", "--json").out)
    rows = {row["id"]: row for row in record["rows"]}
    assert len(rows) == len(read_moe_runs())
    assert all(row["predicted_step_s"] or row["reason"] for row in rows.values())
    assert sum(record["unpredicted_reasons"].values()) < len(rows) / 2


def write(path: Path, *rows: dict[str, str]) -> None:
    path.write_text("\n".join(lines(*rows)), encoding="utf-8")


def lines(*rows: dict[str, str]) -> list[str]:
    text = StringIO()
    names = dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)])
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({**COLUMNS, **row} for row in rows)
    return text.getvalue().splitlines()


@pytest.mark.slow
def test_a_models_columns_are_its_presets() -> None:
    named = {"Qwen3-30B-A3B": "qwen3-30b-a3b", "GPT OSS 120B": "gpt-oss-120b"}
    named |= {"Qwen3_235B_a22B": "qwen3-235b-a22b", "Llama-4 Maverick 400B": "llama-4-maverick"}
    read = {each.text("model"): each for each in read_moe_runs() if each.text("model") in named}
    for name, preset in named.items():
        asked, known = case_of(read[name]).asked, find_model(preset)
        assert shape(asked) == shape(known)


def shape(gpt: GPT) -> tuple[int, ...]:
    sizes = (
        gpt.layers,
        gpt.hidden,
        gpt.attention.heads,
        gpt.key_heads,
        gpt.width,
        gpt.moe.experts,
        gpt.moe.topk,
    )
    return (
        *sizes,
        gpt.moe.expert_ffn,
        gpt.moe.shared_ffn,
        gpt.moe.dense_layers,
        gpt.moe.expert_every,
    )


@pytest.mark.parametrize(
    ("name", "overlaps"),
    [
        ("mbridge-ab-001", set()),
        ("mbridge-ab-002", {"a2a"}),
        ("mbridge-ab-008", {"a2a", "wgrad"}),
        ("mbridge-moe-020", {"a2a", "wgrad"}),
    ],
)
def test_a_row_has_the_overlaps_of_exchanges_that_it_or_its_recipe_names(
    name: str, overlaps: set[str]
) -> None:
    """Besides those of its stack; the last one is a pipeline of four stages of four chunks."""
    run = next(run for run in read_moe_runs() if run.id == name)
    plan = cases.case_as_read(run).job.plan
    assert {"a2a", "wgrad"} & set(plan.training.overlap) == overlaps
    assert "dp" in plan.training.overlap
    assert plan.in_pairs == (name == "mbridge-moe-020")


@pytest.mark.parametrize(
    ("cells", "recomputed"),
    [
        ({"model": "DeepSeekV3", "gpu": "B200", "table_or_figure": "26.04"}, "mla_up_proj"),
        ({"model": "DeepSeekV3 (w/o MTP)", "gpu": "GB300", "table_or_figure": "25.11"}, "moe_act"),
        ({"model": "GPT OSS 120B", "gpu": "GB200", "precision": "bf16"}, "layernorm+moe_act"),
        ({"model": "GPT OSS 120B", "gpu": "GB200", "precision": "mxfp8"}, "none"),
        ({"model": "Qwen3_30B_a3B", "gpu": "B200", "table_or_figure": "26.04"}, "none"),
        (
            {"model": "Nemotron_3_Nano", "gpu": "H100", "precision": "fp8"},
            "core_attn+layernorm+moe",
        ),
    ],
)
def test_what_a_recipe_recomputes_is_that_of_its_release(
    cells: dict[str, str], recomputed: str
) -> None:
    row = run(**{**OF_RECIPES, "table_or_figure": "26.06", "recompute": "", **cells})
    assert row.text("recompute") == recomputed


@pytest.mark.parametrize(
    ("release", "gpu", "overlap"),
    [("26.04", "GB300", ""), ("26.06", "GB300", "a2a+wgrad"), ("26.08", "GB200", "a2a+wgrad")],
)
def test_exchanges_lie_beside_another_micro_batch_where_a_releases_recipe_of_qwen3_has_them(
    release: str, gpu: str, overlap: str
) -> None:
    sizes = {"gpus_total": "256", "global_batch_seqs": "8192", "ep": "32", "precision": "mxfp8"}
    sizes |= {"model": "Qwen3_235B_a22B", "gpu": gpu, "table_or_figure": release}
    row = run(**{**OF_RECIPES, **sizes})
    assert row.text("overlap") == overlap
