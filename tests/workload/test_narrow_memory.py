"""What a plan keeps in fewer bits: AdamW's moments, and what SwiGLU reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executor.errors import LaunchError
from executor.launching.device_use import check_host_use
from simulator.search.bounds.peak_memory import pipeline_bytes
from topologies.machine_files import load_machine
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.op import ROLES
from workload.plan import Plan
from workload.plan_text import parse_plan

LAMA = GPT.of(
    name="lama",
    layers=2,
    hidden=32,
    heads=4,
    ffn=256,
    sequence=16,
    vocab=64,
    positions="rope",
    norm="rmsnorm",
    activation="swiglu",
    biases=False,
)
MIXED = LAMA.changed(
    name="mixed", experts=4, topk=2, expert_ffn=128, dense_layers=1, shared_ffn=128
)
RESTS = ("optimizer=sgd", "optimizer=muon", "precision=fp32")
DEEPSEEK = (
    "pp=16,schedule=dualpipe,ep=64,dp=128,mbs=1,recipe=fp8-blockwise,fp8_dispatch=true,zero=1,"
    "recompute=layernorm+mla_up_proj+moe_act,overlap=all+a2a,dispatcher=once_per_node,"
    "stage_layers=3+4+4+4+4+4+4+4+4+4+4+4+4+4+3+3"
)


def plan_of(text: str) -> Plan:
    return parse_plan(f"mbs=1,{text}", batch=4)


def test_moments_in_bf16_are_two_bytes_each_beside_masters_of_four() -> None:
    bytes_of = {
        moments: lower(LAMA, plan_of(f"moments={moments}")).levels[ROLES.index("optimizer")][0]
        for moments in ("fp32", "bf16")
    }
    assert bytes_of == {"fp32": 12 * LAMA.parameters, "bf16": 8 * LAMA.parameters}


MATRICES = 2 * (4 * 32 * 32 + 3 * 32 * 256) + 64 * 32  # of two layers, and a table
NORMS = 5 * 32
TENSORS = 2 * (4 + 2) + 1 + 1  # matrices and norms of layers, the last norm, the table


@pytest.mark.parametrize(
    ("words", "nbytes"),
    [
        ("moments=fp8", (4 + 2) * (MATRICES + NORMS) + 2 * 4 * TENSORS),
        ("moments=int8", 4 * (MATRICES + NORMS) + 2 * MATRICES + 2 * MATRICES // 64 + 8 * NORMS),
        ("master=remainders", (2 + 8) * (MATRICES + NORMS)),
        ("master=fp16,moments=bf16", 6 * (MATRICES + NORMS)),
        ("master=remainders,moments=bf16", 6 * (MATRICES + NORMS)),
    ],
)
def test_states_of_8_and_16_bits_have_their_bytes_and_scales(words: str, nbytes: int) -> None:
    assert LAMA.parameters == MATRICES + NORMS
    program = lower(LAMA, plan_of(words))
    assert program.levels[ROLES.index("optimizer")][0] == nbytes
    (update, *_) = (op for op in program.ops if op.kind == "adamw" and op.part.is_layer)
    scales = {name for name in (*update.reads, *update.writes) if name.endswith(".scale")}
    assert bool(scales) == ("8" in words)


@pytest.mark.parametrize(
    "words",
    [
        *(f"moments={kind},{rest}" for kind in ("bf16", "int8") for rest in RESTS),
        *(f"master=remainders,{rest}" for rest in RESTS),
        *(f"moments=int8,offload={where}" for where in ("optimizer", "update")),
        "master=fp16,offload=update",
    ],
)
def test_states_are_refused_by_name_where_there_are_none_or_elsewhere(words: str) -> None:
    with pytest.raises(PlanError, match=words.partition(",")[0]):
        plan_of(words)


@pytest.mark.parametrize("words", ["moments=fp8", "moments=int8", "master=remainders"])
def test_a_run_refuses_states_that_no_kernel_updates(words: str) -> None:
    check_host_use(LAMA, plan_of("moments=bf16"), "cpu")
    with pytest.raises(LaunchError, match=words):
        check_host_use(LAMA, plan_of(words), "cpu")


@pytest.mark.parametrize("offload", ["update", "parameters"])
def test_a_run_on_gpus_refuses_an_update_on_the_host(offload: str) -> None:
    plan = plan_of(f"zero=3,offload={offload}")
    check_host_use(LAMA, plan, "cpu")
    with pytest.raises(LaunchError, match=f"offload={offload}"):
        check_host_use(LAMA, plan, "cuda")


def test_what_swiglu_reads_is_kept_in_a_byte_with_a_scale_for_128_values() -> None:
    program = lower(LAMA, plan_of("fp8_swiglu_input=true"))
    kept = program.buffers["m0.l0.swiglu.kept"]
    assert kept.nbytes == 16 * (512 + 4 * 4)  # gate and up of 256 for 16 tokens
    at = program.ops.index(next(op for op in program.ops if op.label == "swiglu.at_hand"))
    last = max(n for n, gone in enumerate(program.releases) if "m0.l0.up.o" in gone)
    assert last < at


@pytest.mark.parametrize("recompute", ["none", "full", "mlp", "moe", "moe_act+shared_experts"])
def test_experts_and_shared_mlps_keep_it_so_too(recompute: str) -> None:
    plan = plan_of(f"fp8_swiglu_input=true,recompute={recompute}")
    gradients = [op for op in lower(MIXED, plan).ops if op.label.endswith("swiglu.grad")]
    assert len(gradients) == 3 * plan.micro_batches  # of an MLP, of experts and of a shared MLP
    read = {name for op in gradients for name in op.reads}
    assert not [name for name in read if name.endswith("kept")]


def test_only_swiglu_is_kept_so() -> None:
    with pytest.raises(PlanCannotRunError, match="activation=gelu"):
        lower(replace(LAMA, activation="gelu"), plan_of("fp8_swiglu_input=true"))


@pytest.mark.slow
def test_deepseek_v3s_own_plan_fits_80_gb_by_what_it_keeps_in_fewer_bits() -> None:
    gpt, room = find_model("deepseek-v3-mtp"), load_machine("1x8xH800").device.usable_bytes
    for narrow, fits in (("", False), (",moments=bf16,fp8_swiglu_input=true", True)):
        plan = parse_plan(DEEPSEEK + narrow, batch=15360)
        assert (pipeline_bytes(gpt, plan) <= room) == fits
