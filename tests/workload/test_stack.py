"""Behaviour of software stacks, by hand: each pass rewrites its ops, and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from workload.exchange.kernels import ExchangeKernels
from workload.gpt import GPT
from workload.lowering import lower
from workload.op import (
    BACKWARD,
    FORWARD,
    GRAD_SCATTER,
    INPUT_GRAD,
    PARAMETER_GATHER,
    ROLES,
    WEIGHT_GATHER,
    WEIGHT_GRAD,
    Op,
)
from workload.passes.stack import (
    PLAIN_BEHAVIOUR,
    STACK_PASSES,
    SUMS,
    StackBehaviour,
    with_behaviour,
)
from workload.plan import Plan
from workload.program import Program
from workload.recipes.cast_kernels import CastKernels
from workload.sizes.rounding import scaled

TINY = GPT.of(name="tiny", layers=2, hidden=64, heads=4, ffn=256, sequence=32, vocab=128)
PLAN = Plan(tp=2, dp=2, batch=4, mbs=1)
IN_FP8 = PLAN.changed(recipe="fp8")
PIPELINE = Plan(tp=2, pp=2, batch=2, mbs=1)
STREAM_BYTES = 32 * 64 * 2  # rows, width, bf16
BOTH = (FORWARD, BACKWARD)


def program(behaviour: StackBehaviour, plan: Plan = PLAN, stage: int = 0) -> Program:
    return lower(TINY, plan, stage, behaviour=behaviour)


def by_name(behaviour: StackBehaviour) -> dict[str, Op]:
    return {op.name: op for op in program(behaviour).ops}


def test_plain_behaviour_nothing_is_changed() -> None:
    ops = program(PLAIN_BEHAVIOUR).ops
    assert with_behaviour(ops, {}, PLAIN_BEHAVIOUR) == (list(ops), {})


def test_an_op_is_fused_by_its_kind_or_by_its_label_and_then_no_bytes_are_its_own() -> None:
    before, after = by_name(PLAIN_BEHAVIOUR), by_name(StackBehaviour(fused=("gelu", "down.add")))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {
        f"m{m}.l{n}.{op}" for m in (0, 1) for n in (0, 1) for op in ("gelu", "down.add")
    }
    assert all((after[name].launches, after[name].nbytes) == (0, 0) for name in changed)


def linears(found: Program, purpose: str) -> list[Op]:
    """The matmuls of layers that serve this."""
    of_layers = [op for op in found.ops if op.kind == "matmul" and op.part.is_layer]
    return [op for op in of_layers if op.purpose == purpose]


def test_fp8_casts_inputs_and_gradients_of_a_layers_linears_into_a_byte_an_element() -> None:
    found = program(PLAIN_BEHAVIOUR, IN_FP8)
    casts = {op.writes[0]: op for op in found.ops if op.kind == "cast" and op.part.is_layer}
    forward, backward = linears(found, ""), linears(found, INPUT_GRAD)
    assert len(forward) == len(backward) == 2 * 2 * 4  # micro-batches, layers, linears
    assert len(casts) == len(forward) + len(backward)
    for op, role in [*((op, "activations") for op in forward),
                     *((op, "workspace") for op in backward)]:  # fmt: skip
        cast, (m, k) = casts[op.reads[0]], (op.attributes["m"], op.attributes["k"])
        assert (op.dtype, cast.dtype, cast.nbytes) == ("fp8", "bf16", 3 * m * k)
        copy = found.buffers[op.reads[0]]
        assert (copy.nbytes, copy.role) == (m * k, role)
    rest = [op for op in found.ops if op.kind == "matmul" and not op.part.is_layer]
    assert {op.dtype for op in rest} == {"bf16"}


def test_fp8_keeps_a_linears_input_in_a_byte_an_element_alone() -> None:
    """For the gradient of its weight a linear has the copy that its forward pass multiplied."""
    found = program(PLAIN_BEHAVIOUR, IN_FP8)
    kept = {op.reads[0] for op in linears(found, "")}
    assert {op.reads[0] for op in linears(found, WEIGHT_GRAD)} == kept
    whole, small = (program(PLAIN_BEHAVIOUR, plan).peak for plan in (PLAN, IN_FP8))
    assert small.parts["activations"] < whole.parts["activations"]


def test_fp8_multiplies_experts_too_but_no_router() -> None:
    gpt = TINY.changed(experts=4, topk=2, expert_ffn=128, biases=False)
    found = lower(gpt, replace(IN_FP8, tp=1, ep=2))
    grouped = [op for op in found.ops if op.kind == "grouped_matmul"]
    routers = [op for op in found.ops if op.label.startswith("router.") and op.kind == "matmul"]
    assert len(grouped) == 3 * 2 * 2 * 2  # passes, linears, micro-batches, layers
    assert {op.dtype for op in grouped} == {"fp8"}
    assert {found.buffers[op.reads[0]].dtype for op in grouped} == {"fp8"}
    assert len(routers) == 3 * 2 * 2
    assert {op.dtype for op in routers} == {"bf16"}


def test_fp8_leaves_the_classifier_of_further_tokens_in_16_bits_with_the_rows_it_gathers() -> None:
    """All else of the module is a layer's: its projection's input is cast, the classifier's not."""
    gpt = TINY.changed(positions="rope", tied=False, mtp_layers=1)
    found, before = (lower(gpt, replace(each, sp=True)) for each in (IN_FP8, PLAN))
    of_heads = [
        (at, op)
        for at, op in enumerate(found.ops)
        if op.part.is_layer and op.label.startswith("head.") and op.kind == "matmul"
    ]
    assert len(of_heads) == 3 * 2  # passes, micro-batches
    assert {op.dtype for _, op in of_heads} == {"bf16"}
    for _, op in of_heads:
        assert {found.buffers[name].dtype for name in op.reads} == {"bf16"}
    gathers = {op.name: op for op in before.ops if op.label.startswith("head.") and op.axes}
    assert gathers
    after = {op.name: op for op in found.ops}
    assert all(after[name] == op for name, op in gathers.items())
    assert {op.dtype for op in found.ops if op.label == "eh_proj.matmul"} == {"fp8"}


def test_fp8_gathers_rows_that_tensor_parallelism_splits_in_a_byte_an_element() -> None:
    before, after = (program(PLAIN_BEHAVIOUR, replace(each, sp=True)) for each in (PLAN, IN_FP8))
    halved = [
        (old.nbytes, new.nbytes)
        for old in before.ops
        for new in after.ops
        if old.name == new.name and old.kind == "all_gather" and old.part.is_layer
    ]
    # In both passes of 2 micro-batches and 2 layers: the rows of two linears and of two gradients,
    # and backward those of the two inputs once more.
    assert len(halved) == 2 * 2 * (2 + 4)
    assert all(old == 2 * new for old, new in halved)
    (gather, *_) = [op for op in after.ops if op.label == "qkv.grad.source.gather"]
    assert after.buffers[gather.reads[0]].dtype == "fp8"
    assert gather.reads[0] in {op.writes[0] for op in after.ops if op.kind == "cast"}


def test_hopper_writes_each_cast_operand_twice_and_transposes_what_was_gathered_in_fp8() -> None:
    """A cast reads two bytes and writes one, twice; a transpose reads and writes one. Of the four
    linears two have gathered inputs, and two gathered gradients."""
    hopper = StackBehaviour(casts=CastKernels(transposes=True))
    whole = program(hopper, IN_FP8)
    casts = [op for op in whole.ops if op.kind == "cast" and op.part.is_layer]
    assert casts
    assert {op.nbytes / whole.buffers[op.writes[0]].nbytes for op in casts} == {4}
    assert not [op for op in whole.ops if op.kind == "transpose"]

    found = program(hopper, replace(IN_FP8, sp=True))
    copies = {op.writes[0]: op for op in found.ops if op.kind == "transpose"}
    multiplied = [name for op in linears(found, WEIGHT_GRAD) for name in op.reads if name in copies]
    assert len(copies) == len(multiplied) == 2 * 2 * 4  # micro-batches, layers, linears
    for name, op in copies.items():
        assert found.buffers[name].dtype == "fp8"
        assert op.nbytes == 2 * found.buffers[op.reads[0]].nbytes == 2 * found.buffers[name].nbytes
    gathered = {op.writes[0] for op in found.ops if op.kind == "all_gather"}
    assert {op.reads[0] for op in copies.values()} <= gathered


def test_a_recomputation_that_stops_early_leaves_out_what_no_gradient_needs() -> None:
    plan = PLAN.changed(recompute="full")
    before, after = (
        program(behaviour, plan) for behaviour in (PLAIN_BEHAVIOUR, StackBehaviour(early_stop=True))
    )
    left_out = {op.label for op in before.ops} - {op.label for op in after.ops}
    assert not left_out  # all of it runs in the forward pass
    again = [[op.label for op in each.ops if op.is_recomputed] for each in (before, after)]
    gone = set(again[0]) - set(again[1])
    assert gone == {"down.matmul", "down.bias", "down.reduce", "down.add"}
    assert len(again[0]) - len(again[1]) == 2 * 2 * len(gone)
    assert sum(op.flops for op in before.ops) - sum(op.flops for op in after.ops) == (
        2 * 2 * 2 * 32 * 128 * 64  # micro-batches, layers; 2 m k n of a rank of x
    )


def test_dropout_behind_the_last_linear_leaves_nothing_to_stop_before() -> None:
    plan, gpt = PLAN.changed(recompute="full"), replace(TINY, dropout=0.1)
    before, after = (
        lower(gpt, plan, 0, behaviour=behaviour)
        for behaviour in (PLAIN_BEHAVIOUR, StackBehaviour(early_stop=True))
    )
    assert before.ops == after.ops


def test_an_op_in_steps_goes_through_memory_and_is_launched_as_often_as_said() -> None:
    behaviour = StackBehaviour(passes=(("gelu", 2.5),), launches=(("gelu", 3),))
    before, after = by_name(PLAIN_BEHAVIOUR), by_name(behaviour)
    name = "m0.l0.gelu"
    assert (after[name].nbytes, after[name].launches) == (5 * before[name].nbytes // 2, 3)
    assert {n for n in before if before[n] != after[n]} == {
        n for n in before if n.endswith(".gelu")
    }


def test_what_a_stack_sends_is_in_the_programs_volume() -> None:
    before = program(PLAIN_BEHAVIOUR).comm_bytes
    after = program(StackBehaviour(payloads=(("all_reduce", 2.0),))).comm_bytes
    assert after == {axes: 2 * nbytes for axes, nbytes in before.items()}


def test_rows_that_fp8_gathers_are_not_halved_again_as_a_payload() -> None:
    rows = replace(IN_FP8, sp=True)

    def gathered(behaviour: StackBehaviour) -> dict[str, int]:
        ops = program(behaviour, rows).ops
        return {op.name: op.nbytes for op in ops if op.is_collective and op.dtype == "fp8"}

    alone = gathered(PLAIN_BEHAVIOUR)
    assert alone
    assert gathered(StackBehaviour(payloads=(("all_gather", 0.5),))) == alone


def test_ranks_of_x_send_a_part_of_a_message_each_and_gather_it_where_it_arrives() -> None:
    first, last = (
        program(StackBehaviour(scatter_gather=BOTH), PIPELINE, stage) for stage in (0, 1)
    )
    assert {op.nbytes for op in (*first.ops, *last.ops) if op.is_message} == {STREAM_BYTES // 2}
    (gather, *_) = [op for op in last.ops if op.label == "c1.input.gather"]
    assert (gather.kind, gather.axes, gather.nbytes) == ("all_gather", ("tp",), STREAM_BYTES)
    (cut, *_) = [op for op in first.ops if op.label == "c0.output.cut"]
    assert cut.nbytes == STREAM_BYTES
    usual = program(PLAIN_BEHAVIOUR, PIPELINE)
    assert {op.nbytes for op in usual.ops if op.is_message} == {STREAM_BYTES}


def test_activations_are_cut_alone_where_a_stack_sends_gradients_whole() -> None:
    for stage, more in ((0, "c0.output.cut"), (1, "c1.input.gather")):
        cut, whole = (
            program(behaviour, PIPELINE, stage)
            for behaviour in (StackBehaviour(scatter_gather=(FORWARD,)), PLAIN_BEHAVIOUR)
        )
        sent = {op.block.phase: op.nbytes for op in cut.ops if op.is_message}
        assert sent == {FORWARD: STREAM_BYTES // 2, BACKWARD: STREAM_BYTES}
        added = {op.name for op in cut.ops} - {op.name for op in whole.ops}
        assert {name.partition(".")[2] for name in added} == {more}


def test_with_sequence_parallelism_messages_are_parts_already() -> None:
    plan = replace(PIPELINE, sp=True)
    assert (
        program(StackBehaviour(scatter_gather=BOTH), plan).ops == program(PLAIN_BEHAVIOUR, plan).ops
    )


def test_slices_of_weights_are_launched_one_by_one_behind_the_update() -> None:
    ops = [op for op in program(StackBehaviour(launches_of_slice=3)).ops if op.kind == "launches"]
    assert len(ops) == len(program(PLAIN_BEHAVIOUR).layouts)
    assert {op.attributes["count"] for op in ops} == {3 * 2}  # for each rank of data
    alone = lower(TINY, replace(PLAN, dp=1), behaviour=StackBehaviour(launches_of_slice=3))
    assert not [op for op in alone.ops if op.kind == "launches"]


def test_a_matmul_that_adds_to_a_gradient_moves_it_in_the_place_of_its_product() -> None:
    """A gradient in fp32 is written with 4 bytes, and read with 4 after the first micro-batch; the
    product's 2 bytes in bf16 are not."""
    before, after = by_name(PLAIN_BEHAVIOUR), by_name(StackBehaviour(fused=("accumulate",)))
    for m, more in ((0, 4 - 2), (1, 8 - 2)):
        name = f"m{m}.l1.up.grad.weight"
        weights = before[name].attributes["m"] * before[name].attributes["n"]
        assert after[name].nbytes - before[name].nbytes == more * weights
        assert after[f"m{m}.l1.up.grad.accumulate"].nbytes == 0
        assert after[name].flops == before[name].flops


def test_a_product_that_is_summed_over_ranks_first_is_written_all_the_same() -> None:
    plan = replace(PLAN, dp=1, z=2)
    before, after = (
        {op.name: op for op in program(behaviour, plan).ops}
        for behaviour in (PLAIN_BEHAVIOUR, StackBehaviour(fused=("accumulate",)))
    )
    assert after["m1.l1.up.grad.weight"].nbytes == before["m1.l1.up.grad.weight"].nbytes


def test_casts_for_experts_are_kernels_of_their_own_where_a_stack_says_so() -> None:
    gpt = TINY.changed(experts=4, topk=2, expert_ffn=64, positions="rope", biases=False)
    plan = Plan.of(dp=2, ep=2, batch=2, mbs=1, recipe="fp8")
    own = CastKernels(expert_bytes=6, expert_kernels=4)
    found = lower(gpt, plan, behaviour=StackBehaviour(casts=own))
    casts = [op for op in found.ops if op.kind == "cast" and op.part.is_layer]
    of_experts = [op for op in casts if op.label.startswith("experts.")]
    assert len(of_experts) == 2 * 2 * 2  # layers, linears, input and gradient
    for op in casts:
        elements = found.buffers[op.writes[0]].nbytes
        assert (op.nbytes / elements, op.launches) == ((6, 1) if op in of_experts else (3, 0))
        kernels = {"kernels": 4 * 2} if op in of_experts else {}  # of two experts on a rank
        assert op.attributes == kernels


EVERY = StackBehaviour(
    reduce_dtype=SUMS,
    once_a_step=True,
    fused=("gelu", "accumulate"),
    gathers_ahead=True,
    coalesced=True,
    one_by_one=True,
    whole_owners=True,
    copies=(("attention", (1, 2)),),
    passes=(("layernorm", 2.33),),
    payloads=(("all_reduce", 0.5),),
    launches=(("layernorm", 2),),
    scatter_gather=BOTH,
    messages="deepspeed",
    launches_of_slice=2,
    early_stop=True,
    own_rows=True,
    context_steps=True,
    exchange_kernels=ExchangeKernels(0.5),
    counted=("sum_rows", "add"),
)


def test_every_pass_of_stacks_is_one_row_with_a_source() -> None:
    assert not [each.name for each in STACK_PASSES if each.matters(PLAIN_BEHAVIOUR)]
    assert all(each.matters(EVERY) and each.words and each.source for each in STACK_PASSES)
    assert len({each.name for each in STACK_PASSES}) == len(STACK_PASSES)


def test_a_factor_is_taken_as_it_is_written() -> None:
    assert [scaled(100, factor) for factor in (2.33, 0.5, 1.0)] == [233, 50, 100]
    assert [scaled(number, 0.5) for number in (1, 2, 3)] == [1, 1, 2]  # half up


ZERO: dict[str, Any] = {"dp": 2, "batch": 4, "mbs": 1, "overlap": ("ors",)}


def scatters(found: Program) -> list[Op]:
    return [op for op in found.ops if op.purpose == GRAD_SCATTER]


@pytest.mark.parametrize("zero", [2, 3])
def test_gradients_are_reduced_in_the_dtype_of_their_sums_cast_before(zero: int) -> None:
    """Four bytes for each of the 64 x 256 elements of a layer's first MLP weight, for two."""
    plan = Plan.of(**ZERO, zero=zero)
    before, after = program(PLAIN_BEHAVIOUR, plan), program(StackBehaviour(reduce_dtype=SUMS), plan)
    assert [op.nbytes for op in scatters(after)] == [2 * op.nbytes for op in scatters(before)]
    (own,) = (op for op in scatters(after) if op.name == "m1.l0.up.grad.scatter")
    assert (own.nbytes, own.dtype) == (64 * 256 * 4, "fp32")
    (cast,) = (op for op in after.ops if op.writes == own.reads)
    assert (cast.kind, cast.stream, cast.nbytes) == ("cast", "compute", 64 * 256 * (2 + 4))
    assert after.buffers[own.writes[0]].dtype == "fp32"
    (added,) = (op for op in after.ops if own.writes[0] in op.reads)
    assert added.nbytes == 64 * 256 // 2 * (4 + 4 + 4)


@pytest.mark.parametrize("keys", [{"z": 2}, {"zero": 3}, {"zero": 1}])
def test_a_stack_in_fp8_gathers_weights_in_16_bits(keys: dict[str, Any]) -> None:
    plan = Plan.of(**{**ZERO, "batch": 8}, **keys)
    gathers = [
        [
            (op.name, op.nbytes, op.dtype)
            for op in program(PLAIN_BEHAVIOUR, plan.changed(recipe=recipe)).ops
            if op.purpose in (WEIGHT_GATHER, PARAMETER_GATHER)
        ]
        for recipe in ("none", "fp8")
    ]
    assert gathers[0] == gathers[1] != []


def test_a_gradient_that_is_scattered_twice_is_cast_once() -> None:
    """Over z, and its part over data: each with four bytes for an element of what it reads."""
    plan = Plan.of(**{**ZERO, "batch": 8}, z=2, zero=2)
    after = program(StackBehaviour(reduce_dtype=SUMS), plan)
    own = [op for op in after.ops if op.name.startswith("m1.l0.up.grad.scatter")]
    assert sorted((op.kind, op.nbytes) for op in own) == [
        ("cast", 64 * 256 * (2 + 4)),
        ("reduce_scatter", 64 * 256 // 2 * 4),
        ("reduce_scatter", 64 * 256 * 4),
    ]


def test_what_is_summed_in_16_bits_is_reduced_in_16_bits() -> None:
    plan = Plan.of(**ZERO, zero=3, gradients="bf16")
    after = program(StackBehaviour(reduce_dtype=SUMS), plan)
    assert after.ops == program(PLAIN_BEHAVIOUR, plan).ops


def weights(found: Program) -> int:
    """Elements of the stage's weights that data splits, whole."""
    gathers = {
        op.writes[0].partition(".")[2]: op for op in found.ops if op.purpose == WEIGHT_GATHER
    }
    return sum(op.nbytes for op in gathers.values()) // 2


@pytest.mark.parametrize("count", [2, 4])
def test_stages_gather_what_they_keep_and_reduce_gradients_once_a_step(count: int) -> None:
    """2 bytes for each weight there and 4 back, whatever the number of micro-batches."""
    plan = Plan(dp=2, pp=2, zero=3, reshard=False, batch=2 * count, mbs=1)
    once = program(StackBehaviour(once_a_step=True), plan)
    each = program(PLAIN_BEHAVIOUR, plan)
    elements = weights(once)
    assert elements == weights(each)
    small = each.comm_bytes["dp"] - count * elements * (2 + 2)
    assert once.comm_bytes["dp"] == elements * (2 + 4) + small
    assert scatters(once) == []
    sizes = dict(zip(ROLES, once.levels.max(axis=1), strict=True))
    assert sizes["gathered"] == 2 * elements
    assert sizes["gradients"] >= 4 * elements


def test_resharded_weights_stay_whole_from_a_backward_pass_to_the_next_forward_pass() -> None:
    """F0 F1 B0 F2 B1 F3 B2 B3: gathered by F0, F1, B0, B1 and B2, reduced once."""
    plan = Plan(dp=2, pp=2, zero=3, batch=8, mbs=1)
    once = program(StackBehaviour(once_a_step=True), plan)
    gathers = [op for op in once.ops if op.purpose == WEIGHT_GATHER and ".up." in op.name]
    assert [(op.block.phase, op.block.micro_batch) for op in gathers] == [
        *((FORWARD, m) for m in (0, 1)),
        *((BACKWARD, m) for m in (0, 1, 2)),
    ]
    assert scatters(once) == []
    sizes = dict(zip(ROLES, once.levels.max(axis=1), strict=True))
    assert sizes["gathered"] >= 2 * 12 * 64**2  # all of the stage's layer


def test_without_stages_each_micro_batch_gathers_and_reduces() -> None:
    plan = Plan(dp=2, zero=3, reshard=False, batch=8, mbs=1)
    assert program(StackBehaviour(once_a_step=True), plan).ops == program(PLAIN_BEHAVIOUR, plan).ops
