"""Parts of layers that run again in the backward pass, by name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.messages import names
from tests.workload.test_experts import TWO, program_of
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import GPT
from workload.program import Program

MIXED = TWO.changed(layers=4, dense_layers=2, shared_ffn=16)
LATENT = TWO.changed(kv_rank=10, q_rank=12, rope_width=2, head_width=6)
PLAN = "dp=4,ep=4"


def again(program: Program, layer: int) -> list[str]:
    return [op.label for op in program.ops if op.is_recomputed and op.part.layer == layer]


def recomputing(of: str, gpt: GPT = MIXED, more: str = "") -> Program:
    return program_of(f"{PLAN},recompute={of}{more}", gpt)


@pytest.mark.parametrize(
    ("of", "dense", "routed"),
    [
        ("layernorm", ["norm2", "norm1"], ["norm2", "norm1"]),
        ("mlp", ["up.matmul", "swiglu"], []),
        ("moe_act", [], ["swiglu"]),
        ("shared_experts", [], ["shared.up.matmul", "shared.swiglu"]),
        ("layernorm+core_attn", ["norm2", "norm1", "attention"], ["norm2", "norm1", "attention"]),
    ],
)
def test_a_part_runs_again_where_it_is(of: str, dense: list[str], routed: list[str]) -> None:
    program = recomputing(of)
    assert (again(program, 0), again(program, 3)) == (dense, routed)
    assert program.model_flops == recomputing("none").model_flops


def test_experts_run_again_up_to_their_last_linear() -> None:
    labels = again(recomputing("moe"), 3)
    assert (labels[0], labels[-1]) == ("router.matmul", "swiglu")
    assert {"dispatch.exchange", "experts.up.matmul"} <= set(labels)
    assert not [label for label in labels if "down" in label or "combine" in label]
    assert again(recomputing("moe"), 0) == []


@pytest.mark.parametrize(
    ("dispatcher", "summed"), [("sparse", "combine.sum_weighted_rows"), ("dense", "combine.matmul")]
)
def test_experts_that_are_weighed_at_home_run_again_until_their_rows_are_back(
    dispatcher: str, summed: str
) -> None:
    """Where experts are narrower than the stream, it is their sum that is widened again."""
    placed, more = MIXED.changed(capacity=2.0), f",dispatcher={dispatcher}"
    for gpt, last in ((placed, "combine.exchange"), (placed.changed(expert_latent=8), summed)):
        assert again(recomputing("moe", gpt, more), 3)[-1] == last


def test_what_leads_up_runs_again_and_queries_keys_and_values_are_not_kept() -> None:
    program = recomputing("mla_up_proj", LATENT)
    expected = ["q_norm", "q_up.matmul", "kv_norm", "kv_up.matmul", "latent.qkv"]
    assert again(program, 0) == expected
    kept = {name for op in program.ops if ".grad" in op.label for name in op.reads}
    assert kept.isdisjoint({"m0.l0.latent.qkv", "m0.l0.q_norm.o", "m0.l0.kv_norm.o"})
    assert "m0.l0.re.latent.qkv" in kept


@pytest.mark.parametrize("of", ["layernorm", "mlp", "moe_act", "shared_experts", "moe"])
def test_what_runs_again_is_not_kept(of: str) -> None:
    """Of the first of two stages, which holds two micro-batches at its peak."""
    gpt = MIXED.changed(dense_layers=2 if of in ("layernorm", "mlp") else 0)
    kept, none = (recomputing(word, gpt, ",pp=2,batch=16") for word in (of, "none"))
    assert kept.peak.total_bytes < none.peak.total_bytes


def test_norms_are_kept_by_their_inputs() -> None:
    reads = [op.name for op in recomputing("layernorm", TWO).ops if "m0.l0.norm2.o" in op.reads]
    assert not [name for name in reads if "grad" in name]


@pytest.mark.parametrize(
    ("of", "error", "named"),
    [
        (
            "norms",
            PlanError,
            ("none", "selective", "full", "per_op", "layers"),
        ),
        ("layernorm+layernorm", PlanError, ("recompute=layernorm+layernorm", "full:N", "moe_act")),
        ("layernorm:2", PlanError, ("recompute=layernorm:2", "full:N", "moe_act")),
        ("full+mlp", PlanError, ("recompute=full+mlp", "full:N", "moe_act")),
        ("mla_up_proj", PlanCannotRunError, ("mla_up_proj", "none")),
        ("moe+moe_act", PlanCannotRunError, ("moe_act",)),
    ],
)
def test_what_is_no_part_is_refused(
    of: str, error: type[Exception], named: tuple[str, ...]
) -> None:
    with pytest.raises(error, check=names(*named)):
        recomputing(of)


@pytest.mark.parametrize(
    ("of", "fields"),
    [
        ("mlp", {}),
        ("shared_experts", {}),
        ("moe", {"experts": 0, "topk": 0, "expert_ffn": 0}),
    ],
)
def test_a_part_that_a_model_has_not_is_refused(of: str, fields: dict[str, Any]) -> None:
    with pytest.raises(PlanCannotRunError, check=names(f"recompute={of}", of)):
        program_of(f"dp=4,recompute={of}", TWO.changed(**fields))
