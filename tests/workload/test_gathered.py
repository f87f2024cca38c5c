"""Tokens gathered from all ranks of experts: counted by hand, and refused where wrong."""

from __future__ import annotations

import pytest

from tests.messages import names
from tests.workload.test_experts import ROWS, TWO, of_layer, program_of
from workload.errors import PlanCannotRunError
from workload.op import EXPERT_COMBINE, EXPERT_DISPATCH
from workload.plan_text import parse_plan

PLAN = "dp=4,ep=4,dispatcher=all_gather"
PLACES = 6  # ceil(0.7 x 32 tokens x 2 / 8 experts)


def test_tokens_of_all_ranks_are_gathered_and_sums_scattered_back() -> None:
    program = program_of(PLAN)
    there = of_layer(program, "dispatch.tokens.gather")
    assert (there.kind, there.axes, there.purpose) == ("all_gather", ("ep",), EXPERT_DISPATCH)
    assert there.nbytes == 4 * ROWS * 32 * 2
    back = of_layer(program, "combine.scatter")
    assert (back.kind, back.nbytes, back.purpose) == (
        "reduce_scatter",
        there.nbytes,
        EXPERT_COMBINE,
    )
    assert of_layer(program, "dispatch.scores.gather").nbytes == 4 * ROWS * 2 * 4
    assert of_layer(program, "dispatch.chosen.gather").nbytes == 4 * ROWS * 2 * 8
    assert "all_to_all" not in {op.kind for op in program.ops}


def test_own_rows_are_kept_for_the_backward_pass_and_gathered_tokens_are_not() -> None:
    program = program_of(PLAN)
    own = program.buffers["m0.l1.dispatch.take_rows"]
    assert (own.shape, own.rows_of) == ((2 * ROWS, 32), "m0.l1.dispatch.counts")
    grads = {name for op in program.ops if ".grad" in op.label for name in op.reads}
    assert own.name in grads
    assert "m0.l1.dispatch.tokens.o" not in grads
    assert program.buffers["m0.l1.dispatch.tokens.o"].role == "gathered"
    assert program.model_flops == program_of("dp=4,ep=4").model_flops


def test_with_a_capacity_the_places_of_all_ranks_are_gathered() -> None:
    program = program_of(PLAN, TWO.changed(capacity=0.7))
    assert of_layer(program, "dispatch.filled.gather").nbytes == 4 * 8 * PLACES * 8
    own = program.buffers["m0.l1.dispatch.take_rows"]
    assert (own.shape, own.rows_of) == ((8 * PLACES, 32), "")


def test_ranks_of_x_that_split_an_expert_sum_behind_the_scatter() -> None:
    program = program_of("tp=2,dp=2,ep=2,sp=true,dispatcher=all_gather")
    labels = [op.label for op in program.ops if op.part.layer == 1]
    assert labels.index("combine.scatter") < labels.index("experts.reduce")
    assert of_layer(program, "combine.scatter").axes == ("ep",)


def test_without_an_axis_of_experts_nothing_is_gathered() -> None:
    with pytest.raises(PlanCannotRunError, check=names("dispatcher=all_gather")):
        parse_plan("dp=4,dispatcher=all_gather")
