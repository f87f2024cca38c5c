"""What stacks keep besides: inner activations, gradients, fp8 copies of weights, and of logits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.predict import predict
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from tests.simulator.test_held import LAMA, LAYER, held_in, of_stack, plan_of
from topologies.machine_files import load_machine
from workload.held import Held
from workload.lowering import lower
from workload.op import WEIGHT_GRAD
from workload.passes.stack import StackBehaviour
from workload.recipes.cast_kernels import CastKernels

TOKENS = 16
EXPERTS = LAMA.changed(name="experts", activation="gelu", experts=2, topk=1, expert_ffn=64)


def test_a_swiglu_in_two_kernels_keeps_the_silu_of_each_layer() -> None:
    plan = plan_of("zero=0")
    most = [
        max(held_in(program, "activations"))
        for program in (of_stack(plan), of_stack(plan, inner_activations=("swiglu",)))
    ]
    assert most[1] - most[0] == LAMA.layers * TOKENS * LAMA.ffn * 2


def test_a_layer_that_runs_again_keeps_the_silu_of_one_layer_at_a_time() -> None:
    plan = plan_of("zero=0,recompute=full")
    most = [
        max(held_in(program, "activations"))
        for program in (of_stack(plan), of_stack(plan, inner_activations=("swiglu",)))
    ]
    assert 0 <= most[1] - most[0] <= TOKENS * LAMA.ffn * 2


def test_experts_whose_gelu_is_weighed_apart_keep_it() -> None:
    plan = plan_of("zero=0")
    held = Held(inner_activations=("weighted_gelu",))
    programs = [
        lower(EXPERTS, plan, behaviour=StackBehaviour(held=each)) for each in (Held(), held)
    ]
    less, more = (max(held_in(program, "activations")) for program in programs)
    assert more - less == EXPERTS.layers * TOKENS * EXPERTS.moe.expert_ffn * 2


def test_gradients_until_the_end_are_all_there_when_a_backward_pass_ends() -> None:
    program = of_stack(plan_of("zero=0"), gradients_until_end=True)
    last = max(at for at, op in enumerate(program.ops) if op.purpose == WEIGHT_GRAD)
    assert held_in(program, "workspace")[last + 1] >= 2 * LAMA.layers * LAYER
    usual = held_in(of_stack(plan_of("zero=0")), "workspace")
    assert max(usual) < 2 * 2 * LAYER


def test_stages_give_up_a_micro_batchs_gradients_within_its_slot() -> None:
    """However many micro-batches there are, a stage holds the gradients of one: two layers' and a
    table's."""
    stack = load_stack("nanotron")
    plan, machine = "pp=2,dp=1,mbs=1,zero=0", load_machine("dgx-h100")
    for batch in (8, 32):
        job = job_of(LAMA, plan, stack, devices=2, batch=batch)
        less, more = (
            predict(
                LAMA, job.plan, machine, stack=replace(stack, memory={"gradients_until_end": each})
            ).memory.stage_peak_bytes
            for each in (False, True)
        )
        own = 2 * (2 * LAYER + LAMA.vocab * LAMA.hidden)
        assert all(0 < b - a <= own for a, b in zip(less, more, strict=True))


def test_buckets_have_all_gradients_in_the_precision_of_training() -> None:
    plan = plan_of("zero=0")
    less, more = (
        held_in(of_stack(plan, gradient_buckets=each), "gradients")[0] for each in (False, True)
    )
    assert more - less == 2 * LAMA.parameters


@pytest.mark.parametrize(("transposes", "count"), [(False, 1), (True, 2)])
def test_weights_have_copies_in_fp8_and_transposed_ones_on_hopper(
    transposes: bool, count: int
) -> None:
    plan, gpt = plan_of("zero=0,precision=fp8"), replace(LAMA, biases=True)  # biases have none
    less, more = (
        held_in(
            lower(
                gpt,
                plan,
                behaviour=StackBehaviour(
                    held=Held(fp8_weights=each), casts=CastKernels(transposes)
                ),
            ),
            "parameters",
        )[0]
        for each in (False, True)
    )
    assert more - less == count * LAMA.layers * LAYER


@pytest.mark.parametrize("nbytes", [4, 6])
def test_a_loss_holds_its_copies_of_logits_up_to_their_gradient(nbytes: int) -> None:
    plan = plan_of("zero=0")
    less, more = (
        max(sum(column) for column in zip(*program.levels.tolist(), strict=True))
        for program in (of_stack(plan), of_stack(plan, loss_bytes=nbytes))
    )
    assert 0 < more - less <= nbytes * TOKENS * LAMA.vocab
    program = of_stack(plan, loss_bytes=nbytes)
    at = next(n for n, op in enumerate(program.ops) if op.kind == "loss_grad")
    usual = held_in(of_stack(plan), "workspace")[at]
    assert held_in(program, "workspace")[at] - usual == nbytes * TOKENS * LAMA.vocab


def test_recomputation_per_op_keeps_what_nothing_reads_without_a_compiler() -> None:
    """Of four linears that are kept nothing reads the last one's output: 16 rows by 32 columns."""
    plan = plan_of("zero=0,recompute=per_op")
    less, more = (
        max(held_in(of_stack(plan, keeps_unread=each), "activations")) for each in (False, True)
    )
    assert more - less == LAMA.layers * TOKENS * LAMA.hidden * 2
