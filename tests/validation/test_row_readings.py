"""What stands for a published row: what is believed of it, and what its notes say."""

from __future__ import annotations

import pytest

from simulator.stacks import load_stack
from tests.validation.test_moe import run as moe_run
from tests.validation.test_published import case
from tests.validation.test_published import run as row
from topologies.machine_files import load_machine
from validation.published import case as cases
from validation.published import comparison
from validation.published.case import case_of
from validation.published.dialect import dialect_of
from validation.published.measured_step import measured_s, unscored
from validation.published.run_machine import machine_of

COMPILED = {"activation": "swiglu", "tp": "1", "pp": "1", "dp": "8"}


@pytest.mark.parametrize(("share", "read"), [(1.1, "none"), (1.2, "full:3")])
def test_a_run_that_ran_is_doubted_only_where_it_needs_far_more_memory(
    share: float, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "share_of_memory", lambda *_: share)
    monkeypatch.setattr(cases, "fitting_change", lambda *_: {"recompute": "full:3"})
    found = case(recompute="none")
    assert found.job.plan.training.recompute == read


@pytest.mark.parametrize(
    ("notes", "shard"), [("HSDP, torch.compile", 8), ("HSDP replicate 4 x shard 4", 4), ("FSDP", 0)]
)
def test_hybrid_sharding_is_within_nodes_unless_it_says_otherwise(notes: str, shard: int) -> None:
    cells = COMPILED | {"gpus_total": "16", "dp": "16", "framework": "fms-fsdp", "notes": notes}
    assert case(**cells).job.plan.shard == shard


@pytest.mark.parametrize(
    ("framework", "notes", "stack"),
    [
        ("torchtitan", "torch.compile=no; x", "torchtitan-eager"),
        ("torchtitan", "local batch 1; eager, selective op AC", "torchtitan-eager"),
        ("torchtitan", "torch.compile=yes; x", "torchtitan"),
        ("fms-fsdp (PyTorch FSDP)", "FSDP, no compile", "fsdp-eager"),
        ("fms-fsdp (PyTorch FSDP)", "FSDP, torch.compile", "fsdp"),
    ],
)
def test_notes_say_whether_modules_were_compiled(framework: str, notes: str, stack: str) -> None:
    assert case(**COMPILED, framework=framework, notes=notes).job.stack.name == stack


def test_norms_that_are_not_compiled_move_more_bytes() -> None:
    machine = load_machine("dgx-a100")
    found = {
        name: case(**COMPILED, framework="fms-fsdp", notes=name).job
        for name in ("torch.compile", "no compile")
    }
    passes = {
        name: dict(job.stack.kernels(job.gpt, job.plan, machine).behaviour.passes)
        for name, job in found.items()
    }
    assert passes["no compile"]["rmsnorm"] == 9.0
    assert "rmsnorm" not in passes["torch.compile"]


@pytest.mark.parametrize("name", ["fsdp", "llm-foundry", "accelerate"])
def test_fsdp_reduces_gradients_beside_the_backward_pass(name: str) -> None:
    assert set(load_stack(name).plan_defaults(1)["overlap"]) == {"dp", "ors", "oag"}


def test_the_launchers_table_of_175b_is_older_than_its_selective_recomputation() -> None:
    cells = {
        **{"source": "NVIDIA NeMo-Megatron-Launcher 23.03 README", "framework": "NeMo Megatron"},
        **{"recompute": "selective", "sequence_parallel": "yes", "model": "GPT3-175B"},
    }
    old, other = (
        case(**cells, table_or_figure=table).job.plan
        for table in ("Training performance tables", "another")
    )
    assert (old.training.recompute, old.sp) == ("full", False)
    assert (other.training.recompute, other.sp) == ("selective", True)


def test_experts_of_torchtitan_are_gated_and_whole_on_their_ranks() -> None:
    found = moe_run(framework="torchtitan")
    assert found.text("activation") == "swiglu"
    assert found.text("etp") == "1"


@pytest.mark.parametrize(
    ("reached", "counts"), [("120", True), ("64", True), ("63", False), ("27.1", False), ("", True)]
)
def test_a_job_whose_network_was_not_well_before_it_began_is_not_scored(
    reached: str, counts: bool
) -> None:
    """On 16 nodes of the playbook's network all-gathers reach 127 GB/s where it is well."""
    notes = f"network before the job: all-reduce 50.1, all-gather {reached}, reduce-scatter 26"
    cells = {"gpus_total": "128", "fabric": "efa-slow", "notes": notes if reached else ""}
    assert (unscored(row(**cells)) == "") is counts


@pytest.mark.parametrize(
    ("cells", "stack"),
    [
        ({"framework": "Megatron-Core (ModelZoo)"}, "nemo"),
        ({"framework": "Megatron-Core (ModelZoo)", "dispatcher": "DeepEP"}, "nemo+deepep"),
        (
            {"framework": "Megatron-Core (report)", "dispatcher": "HybridEP", "gpu": "GB200"}
            | {"model": "DeepSeek-V3 671B", "gpus_per_node": "4"},
            "nemo+deepep+graphs=attn",
        ),
        ({"framework": "Megatron-LM", "dispatcher": "DeepEP"}, "megatron-core-deepep"),
    ],
)
def test_nvidias_own_scripts_of_megatron_core_are_read_as_its_recipes(
    cells: dict[str, str], stack: str
) -> None:
    assert dialect_of(moe_run(**cells)).stack.name == stack


def test_tflops_of_the_modelzoo_count_half_of_attentions_square() -> None:
    """A step that was worked out with all of it is worked out again, and stays unscored."""
    cells = {"framework": "Megatron-Core (ModelZoo)", "step_s": "9.9", "tflops_per_gpu": "100"}
    found = moe_run(**cells, notes="[plan:partial] attention counted in full")
    gpt = case_of(found).asked
    square = 12 * gpt.layers * gpt.sequence * gpt.attention.heads * gpt.width
    flops = gpt.model_flops(16) - 16 * gpt.sequence * square / 2
    assert measured_s(found, gpt, machine_of(found)) == pytest.approx(flops / 8e14)
    assert unscored(found)


@pytest.mark.parametrize(
    ("model", "normed", "eps"), [("Qwen3-32B", True, 1e-6), ("Qwen2.5-32B", False, 1e-5)]
)
def test_queries_and_keys_of_qwen3_have_norms(model: str, normed: bool, eps: float) -> None:
    gpt = case(activation="swiglu", model=model).asked
    assert (gpt.attention.qk_norm, gpt.norm_eps) == (normed, eps)


@pytest.mark.parametrize(
    ("model", "recompute"), [("Qwen3-30B-A3B", "full"), ("GPT OSS 20B", "none")]
)
def test_automodel_shards_keeps_weights_whole_and_recomputes_but_gpt_oss(
    model: str, recompute: str
) -> None:
    cells = {"framework": "NeMo AutoModel (PyTorch FSDP2)", "zero_stage": "3", "recompute": ""}
    found = case_of(moe_run(**cells, model=model, dispatcher="DeepEP")).job
    plan = found.plan
    assert (found.stack.name, plan.zero, plan.reshard) == ("automodel", 3, False)
    assert (plan.training.gradients, plan.training.moments, plan.training.recompute) == (
        "bf16",
        "bf16",
        recompute,
    )


@pytest.mark.parametrize(
    ("kernel", "stack", "passes"),
    [
        ("flash_attention2 + RMS kernel", "aleph-alpha", None),
        ("flash_attention2", "aleph-alpha-torch-norm", 9.0),
        ("flash_attentionv1.0.8", "aleph-alpha-flash-1", 9.0),
    ],
)
def test_aleph_alphas_norms_and_attention_are_those_of_the_kernel_that_notes_name(
    kernel: str, stack: str, passes: float | None
) -> None:
    job = case(**COMPILED, framework="Aleph Alpha in-house", notes=f'kernel "{kernel}"').job
    kernels = job.stack.kernels(job.gpt, job.plan, load_machine("dgx-a100"))
    assert job.stack.name == stack
    assert dict(kernels.behaviour.passes).get("rmsnorm") == passes
    assert (kernels.attention is not None) == (stack == "aleph-alpha-flash-1")


def test_nanotron_counts_the_classifier_among_the_layers_of_its_stages() -> None:
    """A layer costs 16 h^2, the classifier of 64 h words as much as 4; a stage's share is 3."""
    cells = COMPILED | {"pp": "4", "dp": "2", "layers": "8", "vocab": "65536", "activation": "gelu"}
    even, uneven = (
        case(**cells, framework=name).job.plan.pipeline.stage_layers
        for name in ("InternEvo", "nanotron")
    )
    assert (even, uneven) == ((), (4, 3, 1, 0))


def test_the_formula_asks_no_memory_of_rows_that_are_not_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cases, "share_of_memory", lambda *_: pytest.fail("counted"))
    assert comparison._unpredicted(row(measured_step_s="2"))[1] == 2.0
