"""Numbers that remember how they were calculated, and programs lowered with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.examples import few_and_many
from tests.messages import names
from tests.simulator.worlds import TINY
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import GPT
from workload.grid import USUAL
from workload.lowering import lower, lower_again
from workload.passes.table import OVERLAPS
from workload.plan import Plan
from workload.sizes.symbolic import Formulas, evaluated


def test_the_steps_are_taken_again_from_other_inputs() -> None:
    formulas = Formulas()
    a, b = formulas.input(7), formulas.input(2)
    total = (3 * a - b) // b, a % b, -a, 100 // b
    assert [each.value for each in total] == [9, 1, -7, 50]
    values = formulas.values([11, 4])
    assert values is not None
    assert evaluated(total, values) == (7, 3, -11, 25)
    assert evaluated({"share": 1 / b}, values) == {"share": 0.25}


def test_inputs_that_would_have_answered_otherwise_are_refused() -> None:
    formulas = Formulas()
    a = formulas.input(6)
    assert max(a, 4) is a
    assert formulas.values([5]) is not None
    assert formulas.values([3]) is None


def test_a_division_that_other_inputs_would_not_have_come_to_is_no_error() -> None:
    formulas = Formulas()
    heads, groups = formulas.input(8), formulas.input(2)
    _ = heads // groups if groups else heads
    assert formulas.values([8, 4]) is not None
    assert formulas.values([8, 0]) is None


def test_where_the_very_number_is_needed_no_other_will_do() -> None:
    formulas = Formulas()
    a, b = formulas.input(3), formulas.input(5)
    assert [*range(a)] == [0, 1, 2]
    assert formulas.values([3, 8]) is not None
    assert formulas.values([4, 5]) is None
    assert f"{b}" == "5"
    assert formulas.values([3, 8]) is None


MODELS = (
    replace(TINY, layers=4, hidden=64, heads=8, ffn=256),
    replace(TINY, layers=4, hidden=128, heads=16, ffn=192, sequence=32),
    GPT(
        name="llama",
        layers=4,
        hidden=64,
        heads=8,
        kv_heads=4,
        ffn=96,
        sequence=16,
        vocab=100,
        tied=False,
        norm="rmsnorm",
        activation="swiglu",
        positions="rope",
        biases=False,
    ),
)
LATENT = replace(MODELS[-1], kv_heads=0, kv_rank=24, q_rank=20, rope_width=6, value_width=12)
OTHERS = (replace(MODELS[-1], kv_heads=0), replace(MODELS[-1], head_width=16), LATENT)
FIELDS = {
    "tp": st.sampled_from([1, 2, 4]),
    "y": st.sampled_from([1, 1, 2]),
    "z": st.sampled_from([1, 2, 3]),
    "dp": st.sampled_from([1, 2, 4]),
    "mbs": st.sampled_from([1, 2]),
    "zero": st.sampled_from([0, 1, 2, 3]),
    "recompute": st.sampled_from(["none", "selective", "full", "full:3"]),
    "overlap": st.sampled_from([(), ("oar", "ors", "oag"), OVERLAPS]),
    "attention": st.sampled_from(["flash", "unfused"]),
    "sp": st.booleans(),
    "order": st.sampled_from([USUAL, "tp-z-y-dp-pp", "tp-y-dp-z-pp"]),
}


@few_and_many(
    10,
    30,
    settings(deadline=None, derandomize=True),
    gpt=st.sampled_from((*MODELS, *OTHERS)),
    micro_batches=st.sampled_from([1, 3]),
    plan=st.fixed_dictionaries(FIELDS),
)
def test_what_is_lowered_again_is_what_is_lowered(
    gpt: GPT, micro_batches: int, plan: dict[str, object]
) -> None:
    """Ops, buffers, layouts and waits; other sizes were lowered before."""
    batch = micro_batches * plan["z"] * plan["dp"] * plan["mbs"]  # type: ignore[operator]
    try:
        own = Plan(batch=batch, **plan)  # type: ignore[arg-type]
        program = lower(gpt, own)
    except (PlanError, PlanCannotRunError):
        return
    for _ in range(3):
        again = lower_again(gpt, own)
        assert again.ops == program.ops
        assert dict(again.buffers) == program.buffers
        assert dict(again.layouts) == program.layouts
        assert dict(again.states) == program.states
        assert (again.waits, again.releases) == (program.waits, program.releases)
        assert (again.levels == program.levels).all()


def test_a_plan_that_does_not_divide_is_refused_as_ever() -> None:
    gpt = MODELS[0]
    for x in (1, 2, 4, 1, 2, 4):
        lower_again(gpt, Plan(tp=x, batch=2, mbs=2))
    with pytest.raises(PlanCannotRunError, check=names("tp=3", "heads=8")):
        lower_again(gpt, Plan(tp=3, batch=2, mbs=2))
