"""Recipes in programs, by hand: what is cast, gathered and kept, and how large it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.predict import predict
from tests.messages import names
from topologies.errors import MachineError
from topologies.machine_files import load_machine
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import GPT
from workload.lowering import lower
from workload.lowering.four_bits import check_four_bits_of
from workload.op import BACKWARD, INPUT_GRAD, STEP, WEIGHT_CAST, WEIGHT_GATHER, WEIGHT_GRAD, Op
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program
from workload.recipes.table import RECIPES, check_runs

TINY = GPT.of(name="tiny", layers=2, hidden=64, heads=4, ffn=256, sequence=32, vocab=128)
PLAN = Plan(batch=2, mbs=1)
NAMES = [each.name for each in RECIPES]
FURTHER = TINY.changed(mtp_layers=1, positions="rope", biases=False)
ROUTED = TINY.changed(experts=4, topk=2, expert_ffn=64, biases=False)


def program(recipe: str, **how: object) -> Program:
    return lower(TINY, PLAN.changed(recipe=recipe, **how))


def casts(found: Program) -> list[Op]:
    return [op for op in found.ops if op.kind == "quantise"]


def test_a_tensor_is_cast_once_in_a_micro_batch_and_a_weight_once_in_a_step() -> None:
    """Of each of four linears the input and the gradient of the output, in both micro-batches and
    layers; without a recipe nothing is."""
    found = program("fp8-tensorwise")
    within = [op for op in casts(found) if op.block != STEP]
    behind = [op for op in casts(found) if op.block == STEP]
    assert (len(within), len(behind)) == (2 * 2 * 4 * 2, 2 * 4)
    assert {op.purpose for op in behind} == {WEIGHT_CAST}
    assert casts(lower(TINY, PLAN)) == []


def test_a_cast_reads_16_bits_and_writes_8_with_its_scales() -> None:
    up = {op.name: op for op in program("fp8-tensorwise").ops}["m0.l0.up.matmul.quantise0"]
    elements = 32 * 64  # rows, width
    assert up.nbytes == (2 + 1) * elements + 4 + 4  # and the largest value, and the scale
    both = {op.name: op for op in program("mxfp8").ops}["m0.l0.up.matmul.quantise0"]
    assert both.nbytes == (2 + 1 + 1) * elements + 2 * elements // 32  # summed along rows, columns
    four = {op.name: op for op in program("nvfp4").ops}["m0.l0.up.matmul.quantise0"]
    assert (
        four.nbytes == (2 + 0.5 + 0.5) * elements + 2 * elements // 16 + 8
    )  # of two largest values


@pytest.mark.parametrize("recipe", NAMES)
def test_inputs_are_kept_as_they_are_multiplied_alone(recipe: str) -> None:
    """What the backward pass reads of a linear's input is its copy, of fewer bytes."""
    found = program(recipe)
    matmuls = [op for op in found.ops if op.kind == "matmul" and op.part.is_layer]
    (forward,) = (op for op in matmuls if op.name == "m0.l0.up.matmul")
    (weight,) = (op for op in matmuls if op.name == "m0.l0.up.grad.weight")
    assert forward.dtype == weight.dtype
    kept = found.buffers[weight.reads[0]]
    assert kept.role == "activations"
    assert kept.nbytes <= 32 * 64
    source = forward.reads[0].partition("o.")[0] + "o"
    assert not [op for op in found.ops if source in op.reads and op.block.phase == BACKWARD]


def test_parts_of_weights_are_gathered_in_a_byte_an_element_where_one_scale_is_of_all() -> None:
    for recipe, share in (("fp8-tensorwise", 2), ("fp8-delayed", 2), ("fp8-blockwise", 1)):
        plain, found = (
            [
                op
                for op in each.ops
                if op.purpose == WEIGHT_GATHER and op.part.is_layer and op.micro_batch >= 0
            ]
            for each in (program("none", z=2), program(recipe, z=2))
        )
        assert len(plain) == len(found) == 2 * 4 * 2  # layers, linears, passes
        assert sum(op.nbytes for op in plain) == share * sum(op.nbytes for op in found)


def test_the_largest_value_is_reduced_over_ranks_with_parts_of_the_same_tensor() -> None:
    """Columns over x: the inputs of `out` and `down`, the gradients behind `qkv` and `up`, and the
    weights, which z splits besides; each rank of z has rows of its own."""
    found = program("fp8-tensorwise", tp=2, z=2)
    reduced = [op for op in found.ops if op.attributes.get("reduction") == "max"]

    within = {op.label: op.axes for op in reduced if op.part.is_layer and op.micro_batch == 0}
    assert within == dict.fromkeys(
        (
            "out.matmul.amax0.reduce",
            "down.matmul.amax0.reduce",
            "up.grad.input.amax0.reduce",
            "qkv.grad.input.amax0.reduce",
        ),
        ("tp",),
    )
    (weights,) = (op for op in reduced if op.purpose == WEIGHT_CAST)
    assert weights.axes == ("tp", "z")
    assert weights.nbytes == 2 * 4 * 4


def test_experts_rows_have_one_scale_on_all_ranks_with_parts_of_the_same_sequences() -> None:
    """Ranks of x have other rows of them, whether they hold other experts, the same or parts."""
    base = Plan(tp=4, dp=2, batch=4, mbs=1, sp=True)
    for tensor, experts in ((1, 2), (1, 8), (2, 2), (8, 1)):
        plan = base.changed(etp=tensor, ep=experts, recipe="fp8-tensorwise")
        found = lower(ROUTED.changed(experts=8), plan)
        reduced = [op for op in found.ops if op.attributes.get("reduction") == "max"]
        first = next(op for op in reduced if op.label.startswith("experts.up.matmul"))
        assert plan.grid.dimensions("tp") <= plan.grid.dimensions(*first.axes), plan
        assert plan.grid.size(*first.axes) == (8 if experts == 8 else 4), plan


def test_delayed_scales_wait_for_no_rank_within_a_step() -> None:
    found = program("fp8-delayed", tp=2, dp=2)
    reduced = [op for op in found.ops if op.label == "amaxes.reduce"]
    assert [op.axes for op in reduced] == [("tp", "dp")]
    assert reduced[0].nbytes == 2 * 4 * 3 * 4  # layers, linears, operands, fp32
    assert "amax" not in {op.kind for op in found.ops}


def test_weights_have_a_copy_for_each_direction_in_which_blocks_lie() -> None:
    """A scale of a row of 32 is none of a column; a square serves both."""
    for recipe, copies in (("fp8-tensorwise", 1), ("fp8-blockwise", 1), ("mxfp8", 2)):
        held = [b for b in program(recipe).buffers.values() if b.name.startswith("l0.up.w.")]
        values = [b.nbytes for b in held if b.persistent and b.dtype == "fp8"]
        assert values == [64 * 256] * copies


def test_a_linear_takes_formats_by_what_its_operands_are() -> None:
    found = [op for op in program("fp8-tensorwise").ops if "formats" in op.attributes]
    by_purpose = {op.purpose: op.attributes["formats"] for op in found if op.kind == "matmul"}
    assert by_purpose == {
        "": ("e4m3", "e4m3"),
        INPUT_GRAD: ("e5m2", "e4m3"),
        WEIGHT_GRAD: ("e4m3", "e5m2"),
    }


@pytest.mark.parametrize("recipe", NAMES)
def test_folded_and_whole_programs_take_as_long(recipe: str) -> None:
    machine = load_machine("dgx-b200")
    plan = Plan.of(tp=2, dp=2, zero=1, batch=8, mbs=1, recipe=recipe)
    gpt = replace(TINY, layers=5)
    folded, whole = predict(gpt, plan, machine), predict(gpt, plan, machine, fold=False)
    assert (folded.step_s, folded.memory) == (whole.step_s, whole.memory)


def test_a_device_without_the_format_is_refused_by_name() -> None:
    with pytest.raises(MachineError, check=names("dgx-h100", "device.peak_flops.mxfp8")):
        predict(TINY, PLAN.changed(recipe="mxfp8"), load_machine("dgx-h100"))


def test_precision_may_name_a_recipe() -> None:
    plan = parse_plan("precision=fp8-blockwise")
    assert (plan.training.precision, plan.training.recipe) == ("bf16", "fp8-blockwise")
    assert parse_plan("precision=fp32,recipe=mxfp8").training.precision == "fp32"
    with pytest.raises(PlanError, check=names("fp8-delayed", "fp8-tensorwise")):
        check_runs(parse_plan("precision=fp8"))
    with pytest.raises(PlanError, check=names("precision=mxfp8", "recipe=nvfp4")):
        parse_plan("precision=mxfp8,recipe=nvfp4")


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"matmul_forms": "tuned"}, ("matmul_forms=tuned",)),
        ({"optimizer": "lomo"}, ("optimizer=lomo",)),
        ({"optimizer": "mezo"}, ("optimizer=mezo",)),
    ],
)
def test_what_a_recipe_does_not_go_with_is_refused(
    how: dict[str, str], named: tuple[str, ...]
) -> None:
    with pytest.raises(PlanCannotRunError, check=names(*named)):
        Plan.of(batch=1, mbs=1, recipe="mxfp8", **how)


def test_rows_of_experts_have_room_for_a_last_block_of_each() -> None:
    """64 rows to a rank with 2 of 4 experts: up to 32 more of each, in values and in scales."""
    routed = TINY.changed(experts=4, topk=2, expert_ffn=64, biases=False)
    found = lower(routed, PLAN.changed(recipe="mxfp8", dp=2, ep=2, mbs=1))
    values = found.buffers["m0.l0.dispatch.sort.sort_rows.mxfp8.columns"]
    scales = found.buffers[f"{values.name}.scale"]
    assert (values.shape, scales.shape) == ((64 // 32 + 2, 32, 64), (64 // 32 + 2, 64))
    weight = found.buffers["l0.experts.up.w.mxfp8.rows.scale"]
    assert weight.nbytes == 2 * 64 * 64 // 32
    even = lower(routed.changed(capacity=1.25), PLAN.changed(recipe="mxfp8"))
    # 4 x 20 places, of which each expert's are filled up to 32.
    assert even.buffers["m0.l0.dispatch.take_rows.mxfp8.columns"].shape == (80 // 32 + 4, 32, 64)
    with pytest.raises(PlanCannotRunError, match="tp=4 leaves 16 of expert_ffn=64"):
        lower(routed, PLAN.changed(recipe="mxfp8", tp=4))


def test_experts_multiply_in_the_recipes_format() -> None:
    routed = TINY.changed(experts=4, topk=2, expert_ffn=64, biases=False)
    found = lower(routed, PLAN.changed(recipe="fp8-tensorwise", dp=2, ep=2))
    assert {op.dtype for op in found.ops if op.kind == "grouped_matmul"} == {"fp8"}


def test_rows_of_experts_in_four_bits_have_two_values_in_a_byte_and_largest_values_of_each() -> (
    None
):
    """64 rows to a rank with 2 of 4 experts, in runs of 128 of which scales in columns have 8."""
    found = lower(ROUTED, PLAN.changed(recipe="nvfp4", dp=2, ep=2, mbs=1))
    source = "m0.l0.dispatch.sort.sort_rows"
    filled = 64 // 128 + 2, 128
    values = [found.buffers[f"{source}.nvfp4.{way}"] for way in ("columns", "rows")]
    assert {(each.shape, each.dtype) for each in values} == {((*filled, 64 // 2), "uint8")}
    scales = [found.buffers[f"{each.name}.scale"].shape for each in values]
    assert scales == [(filled[0], 128 // 16, 64), (*filled, 64 // 16)]
    assert {each.rows_in for each in values} == {(128, 2)}
    assert found.buffers[f"{source}.amax"].shape == (2, 2)  # and turned
    assert found.buffers["l0.experts.up.w.amax"].shape == (2, 1)
    by_name = {op.name: op for op in found.ops}
    look = by_name["m0.l0.experts.up.matmul.amax0"]
    assert look.reads == (source, "m0.l0.dispatch.counts.arrived")
    sent = by_name["m0.l0.dispatch.exchange"]
    assert sent.nbytes == 64 * 64 * 2  # in 16 bits, as Megatron-Core sends them


def test_largest_values_of_an_expert_are_reduced_over_its_columns_alone() -> None:
    """Not over ranks that exchange rows, nor over those of context; over x, which splits the
    columns of its inner rows and of its weights, they are."""

    def reduced(**how: object) -> set[tuple[str, tuple[str, ...]]]:
        found = lower(ROUTED, PLAN.changed(recipe="nvfp4", **how))
        ops = [op for op in found.ops if op.attributes.get("reduction") == "max"]
        return {(op.label, op.axes) for op in ops if op.block == STEP or "experts" in op.label}

    assert reduced(dp=2, ep=2) == set()
    within = {label for label, _ in reduced(cp=2)}
    assert not {label for label in within if label.startswith("experts")}
    assert reduced(tp=2) == {
        ("experts.down.matmul.amax0.reduce", ("tp",)),
        ("experts.up.grad.input.amax0.reduce", ("tp",)),
        ("amaxes.reduce", ("tp",)),
    }


def test_the_classifier_of_a_module_for_further_tokens_stays_in_16_bits() -> None:
    found = lower(FURTHER, PLAN.changed(recipe="nvfp4"))
    read = {name for op in found.ops if op.dtype == "nvfp4" for name in op.reads}
    assert "l2.eh_proj.w.nvfp4" in read
    assert "l2.up.w.nvfp4" in read
    assert not {name for name in read if name.startswith("head.w")}
    heads = [op for op in found.ops if op.label.startswith("head.") and op.kind == "matmul"]
    assert [op.dtype for op in heads] == ["bf16"] * 12  # two micro-batches, two classifiers


@pytest.mark.parametrize("recipe", NAMES)
def test_updated_parts_of_a_weight_are_gathered_as_they_are(recipe: str) -> None:
    """Also where a layer has one weight alone in its gather, as a module's first linear."""
    plan = PLAN.changed(recipe=recipe, tp=2, dp=2, zero=1, sp=True)
    ops = lower(FURTHER, plan).ops
    (gathered,) = (op for op in ops if op.kind == "all_gather" and "l2.eh_proj.w" in op.writes)
    assert gathered.reads == ("l2.eh_proj.w.updated",)
    assert gathered.dtype == "bf16"


def test_four_bits_run_in_whole_blocks() -> None:
    four = PLAN.changed(recipe="nvfp4")
    check_four_bits_of(TINY, four)
    # Rows of experts are filled up, their columns are not.
    check_four_bits_of(replace(ROUTED, sequence=48), four)
    with pytest.raises(PlanCannotRunError, match="has 24 columns"):
        check_four_bits_of(ROUTED.changed(expert_ffn=24), four)
    with pytest.raises(PlanCannotRunError, check=names("recipe=nvfp4", "16", "8")):
        check_four_bits_of(TINY.changed(head_width=8), replace(four, tp=4))
    with pytest.raises(PlanCannotRunError, check=names("recipe=nvfp4", "16", "24")):
        check_four_bits_of(replace(TINY, sequence=24), four)


def test_what_is_made_again_for_a_weights_gradient_alone_has_that_weight() -> None:
    """Delayed scales of a layer's linears, four in order, have three slots each, the input's
    first: the gelu that runs again is the input of the last, as the one of the forward pass is."""
    found = program("fp8-delayed", recompute="mlp")
    slots = {op.reads[0]: op.attributes["slot"] for op in casts(found) if "gelu.o" in op.reads[0]}
    assert slots["m0.l1.gelu.o"] == slots["m0.l1.re.gelu.o"] == 3 * 3


def test_scales_with_a_history_are_not_saved() -> None:
    with pytest.raises(
        PlanCannotRunError, check=names("recipe=fp8-delayed", "--save", "recipe=fp8-tensorwise")
    ):
        check_runs(PLAN.changed(recipe="fp8-delayed"), saves=True)
    check_runs(PLAN.changed(recipe="fp8-tensorwise"), saves=True)


def narrow(recipe: str = "fp8-blockwise", **how: object) -> Program:
    """A program of experts on two ranks that send rows in 8 bits."""
    plan: dict[str, Any] = {"dp": 2, "ep": 2, "batch": 4, "mbs": 1, "recipe": recipe}
    gpt = ROUTED.changed(layers=1, capacity=1.0)
    return lower(gpt, Plan.of(**{**plan, "fp8_dispatch": True, **how}))


def test_rows_go_to_experts_in_a_byte_each_with_their_scales_and_come_back_as_they_are() -> None:
    """32 tokens of 64 columns with two choices: 64 rows, with one scale of 4 bytes or two of 1."""
    for recipe, scales in (("fp8-blockwise", 4), ("mxfp8", 2)):
        found = {op.label: op for op in narrow(recipe).ops if op.micro_batch == 0}
        sent = [found[f"{label}.exchange"] for label in ("dispatch", "combine.grad")]
        back = [found[f"{label}.exchange"] for label in ("combine", "dispatch.grad")]
        assert [(op.nbytes, op.dtype) for op in sent] == [(64 * (64 + scales), "fp8")] * 2
        assert [(op.nbytes, op.dtype) for op in back] == [(64 * 64 * 2, "bf16")] * 2
        assert found["dispatch.narrow"].nbytes == 32 * (64 * 2 + 64 + scales)


def test_rows_that_came_in_8_bits_are_cast_for_linears_from_these() -> None:
    """Nothing has them in 16 bits, but where biases of experts need their gradient so."""
    program = narrow()
    casts = [op for op in program.ops if op.attributes.get("sent") and op.micro_batch == 0]
    assert [op.label for op in casts] == [
        "experts.up.matmul.quantise0", "experts.down.grad.input.quantise0"
    ]  # fmt: skip
    assert all(program.buffers[op.reads[0]].dtype == "fp8" for op in casts)
    assert not [op for op in program.ops if op.kind == "dequantise_rows"]
    assert not [name for name in program.buffers if name.endswith(".wide")]
    gpt = replace(ROUTED, layers=1, biases=True)
    plan = Plan.of(dp=2, ep=2, batch=4, mbs=1, recipe="mxfp8", fp8_dispatch=True)
    wide = [op.label for op in lower(gpt, plan).ops if op.kind == "dequantise_rows"]
    assert {*wide} == {"combine.grad.wide"}


def test_rows_in_8_bits_are_sent_once_where_the_stack_sends_them_once() -> None:
    behaviour = StackBehaviour(payloads=(("all_to_all", 0.5), ("all_gather", 0.5)))
    plan = Plan.of(dp=2, ep=2, batch=4, mbs=1, recipe="mxfp8", fp8_dispatch=True)
    whole, half = (lower(ROUTED, plan, behaviour=each) for each in (PLAIN_BEHAVIOUR, behaviour))
    (sent, _), (once, _) = (
        [op.nbytes for op in each.ops if op.label == "dispatch.exchange" and op.part.layer == 0]
        for each in (whole, half)
    )
    assert once == sent / 2


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"recipe": "fp8-tensorwise"}, ("recipe=fp8-blockwise", "mxfp8")),
        ({"recipe": "none"}, ("recipe=fp8-blockwise", "mxfp8")),
        ({"ep": 1}, ("ep",)),
        ({"dispatcher": "all_gather"}, ("dispatcher=all_gather", "usual")),
        ({"dispatcher": "dense"}, ("dispatcher=dense", "usual")),
    ],
)
def test_rows_that_cannot_be_sent_in_8_bits_are_refused_by_name(
    how: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(PlanError, check=names("fp8_dispatch=true", *named)):
        narrow(**how)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_the_fp8_of_a_stack_has_all_else_in_bf16(precision: str) -> None:
    with pytest.raises(PlanCannotRunError, match=f"recipe=fp8 .* precision={precision}"):
        parse_plan(f"mbs=1,recipe=fp8,precision={precision}", batch=1)
