"""Kernels of gpt-oss' activation and of YaRN's rotations under stacks of Megatron-Core, and those
of unfused attention: their bytes, and what the host issues."""

from __future__ import annotations

import pytest

from simulator.costs.graph_scopes import issued
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.lowering import lower
from workload.op import Op

YARN = "yarn:factor=32:original_max_position_embeddings=4096:truncate=0"
ROWS, EXPERT_ROWS = 128, 4 * 128  # of one sequence, and of its tokens' four experts
TURNED = (64 + 8) * 64  # elements of a row's queries and keys
# Elements moved for one of the output: the fused kernel, then clamped and joined halves.
ACTIVATED, ACTIVATED_GRAD = 3 + (1 + 1) * 2 + 4, 5 + 4 + 7 + 4
# Passes over queries and keys, or their gradients, by the kernels of PyTorch.
ROTATED, ROTATED_GRAD = 4 + 1 + 2 + 3 + 2, 4 + 1 + 2 + 1 + 6


def kernels(stack: str, rope_scaling: str = YARN) -> dict[str, Op]:
    """The ops by label of a gpt-oss of one layer on one device under a stack."""
    gpt = find_model("gpt-oss-20b")
    gpt = gpt.changed(layers=1, sequence=ROWS, window=0, global_every=0, rope_scaling=rope_scaling)
    job = job_of(gpt, "mbs=1", load_stack(stack), devices=1, batch=1)
    behaviour = job.stack.kernels(job.gpt, job.plan, load_machine("dgx-h100")).behaviour
    return {op.label: op for op in lower(job.gpt, job.plan, behaviour=behaviour).ops}


@pytest.mark.parametrize("stack", ["megatron-core", "nemo", "nemo+deepep+graphs=attn"])
def test_clamps_before_the_fused_activation_move_its_halves_twice(stack: str) -> None:
    ops, elements = kernels(stack), EXPERT_ROWS * 2880
    assert ops["clamped_swiglu"].nbytes == pytest.approx(2 * elements * ACTIVATED, rel=2e-3)
    moved = 2 * elements * ACTIVATED_GRAD
    assert ops["clamped_swiglu.grad"].nbytes == pytest.approx(moved, rel=1e-3)


def test_whole_steps_in_graphs_have_the_activation_within_the_matmuls() -> None:
    assert kernels("nemo+deepep+fused-experts+graphs=full")["clamped_swiglu"].nbytes == 0


def test_yarn_turns_queries_and_keys_by_kernels_of_pytorch_and_plain_rope_by_one() -> None:
    scaled, plain = kernels("nemo"), kernels("nemo", "none")
    turned = 2 * ROWS * TURNED
    assert [scaled[label].nbytes for label in ("rope", "rope.grad")] == [
        ROTATED * turned,
        ROTATED_GRAD * turned,
    ]
    assert [scaled[label].launches for label in ("rope", "rope.grad")] == [8, 5]
    assert {plain[label].nbytes for label in ("rope", "rope.grad")} == {2 * turned}
    assert plain["rope"].launches == 1


def test_scaling_that_multiplies_nothing_leaves_rope_one_kernel() -> None:
    linear = kernels("nemo", "linear:factor=4")["rope"]
    assert (linear.nbytes, linear.launches) == (4 * ROWS * TURNED, 1)


def test_a_stack_with_one_share_for_all_rotations_keeps_it_for_scaled_ones() -> None:
    """Five times the two passes, as for rope without YaRN."""
    assert kernels("torchtitan-eager")["rope"].nbytes == 5 * 4 * ROWS * TURNED


def test_a_graph_of_attention_does_not_issue_the_clamped_activation() -> None:
    op = kernels("nemo+graphs=attn")["clamped_swiglu"]
    assert issued(op, ("attn", "moe_router", "moe_preprocess")) == op.launches == 1


def test_transformer_engines_softmax_moves_whole_squares_of_long_sequences() -> None:
    """Two heads' squares of 4,096: read and written, and two read and one written backward."""
    gpt = find_model("gpt-oss-20b").changed(layers=1, heads=4, kv_heads=4, sinks=False)
    gpt = gpt.changed(window=0, global_every=0)
    job = job_of(gpt, "mbs=1,attention=unfused", load_stack("nemo"), devices=1, batch=1)
    behaviour = job.stack.kernels(job.gpt, job.plan, load_machine("gb200-nvl72")).behaviour
    ops = {op.kind: op for op in lower(job.gpt, job.plan, behaviour=behaviour).ops}
    square = 4 * 4096**2
    assert [ops[kind].nbytes for kind in ("softmax", "softmax_grad")] == [4 * square, 6 * square]
    assert ops["softmax"].launches == 1
