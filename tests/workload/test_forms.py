"""Matmul forms as a pass: what stands before a matmul whose form is changed."""

from __future__ import annotations

import pytest

from tests.forms import swapped
from tests.workload.test_program import GOLDEN, ONE_LAYER, names, op_of, table
from workload.lowering import lower
from workload.op import FORMS
from workload.passes.matmul_forms import matmul_of
from workload.plan_text import parse_plan
from workload.program import Program

PLAN = "tp=2,y=2,z=2,dp=2,recompute=full,overlap=all,matmul_forms=tuned"


def program_of(text: str = PLAN, **swap: str) -> Program:
    plan = parse_plan(text, batch=4)
    return lower(ONE_LAYER, plan, forms=swapped(ONE_LAYER, plan, swap))


def test_the_whole_program_is_as_reviewed() -> None:
    text, path = table(program_of(TN="NN", NT="NN")), GOLDEN / "forms.txt"
    assert text == path.read_text(encoding="utf-8"), f"see {path}, and rewrite it if this is meant"


def test_a_weight_gradient_as_nn_transposes_its_left_operand() -> None:
    """The input has 4 * 16 rows and, with y=2, 32 / 2 columns."""
    program = program_of("y=2,matmul_forms=tuned,overlap=none", TN="NN")
    transpose = op_of(program, "m0.l0.up.grad.weight.left")
    copy = program.buffers[transpose.writes[0]]
    assert transpose.reads == ("m0.l0.norm2.o",)
    assert (copy.shape, copy.role) == ((32 // 2, 4 * 16), "workspace")
    assert transpose.nbytes == 2 * copy.nbytes
    matmul = op_of(program, "m0.l0.up.grad.weight")
    assert matmul.reads == (copy.name, "m0.l0.down.di")
    assert matmul.attributes["form"] == "NN"


def test_an_input_gradient_as_nn_transposes_its_weight() -> None:
    program = program_of("dp=1,matmul_forms=tuned", NT="NN")
    transpose = op_of(program, "m0.l0.up.grad.input.right")
    assert transpose.reads == ("l0.up.w",)
    assert program.buffers[transpose.writes[0]].shape == (128, 32)


def test_both_operands_are_transposed_where_both_letters_differ() -> None:
    block = names(program_of("dp=1,matmul_forms=tuned", NT="TN"), "m0.l0.backward")
    at = block.index("m0.l0.up.grad.input")
    assert block[at - 2 : at] == ["m0.l0.up.grad.input.left", "m0.l0.up.grad.input.right"]


@pytest.mark.parametrize("form", FORMS)
def test_another_form_changes_neither_flops_nor_collectives(form: str) -> None:
    plain = program_of()
    other = program_of(**{each: form for each in FORMS if each != form})
    assert other.hardware_flops == plain.hardware_flops
    assert other.comm_bytes == plain.comm_bytes
    matmuls = [op for op in other.ops if op.kind == "matmul"]
    assert {op.attributes["form"] for op in matmuls} == {form}
    rest = [op.name for op in other.ops if op.kind != "transpose"]
    assert rest == [op.name for op in plain.ops]


def test_a_matmul_in_its_own_form_is_left_alone() -> None:
    plain = program_of()
    assert program_of(**{form: form for form in FORMS}).ops == plain.ops


def test_a_plan_of_plain_matmuls_takes_no_choice() -> None:
    plan = parse_plan(PLAN, batch=4)
    forms = swapped(ONE_LAYER, plan, {"TN": "NN"})
    with pytest.raises(AssertionError):
        lower(ONE_LAYER, plan.changed(matmul_forms="plain"), forms=forms)


def test_matmuls_of_one_form_shape_and_dtype_are_the_same() -> None:
    program = program_of("dp=1,matmul_forms=tuned")
    up, down = (op_of(program, f"m0.l0.{name}.matmul") for name in ("up", "down"))
    assert matmul_of(up) == ("NN", 64, 128, 32, "bf16")
    assert matmul_of(down) == ("NN", 64, 32, 128, "bf16")
