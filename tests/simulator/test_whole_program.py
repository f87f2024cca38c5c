"""Programs of all layers: the sizes of what sums over all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from simulator.engine.fewer_layers import LENGTHS
from simulator.engine.whole_program import lowered_again, whole_program
from tests.simulator.worlds import TINY, plan_of
from workload.gpt import GPT
from workload.lowering import lower
from workload.op import NORM_REDUCE
from workload.plan import Plan
from workload.program import Program

WHOLE = 23
PLANS = (
    "tp=2,z=2,dp=2",
    "z=2,dp=2,zero=1,overlap=oar+ors",
    "z=2,dp=2,zero=3,overlap=all",
    "dp=4,zero=2,shard=2",
)


@pytest.mark.parametrize(
    "text", [PLANS[0], PLANS[2], *(pytest.param(t, marks=pytest.mark.slow) for t in PLANS[1::2])]
)
def test_sizes_and_memory_are_those_of_the_program_that_is_lowered_whole(text: str) -> None:
    gpt, plan = replace(TINY, layers=WHOLE), plan_of(text, 3)
    found, expected = whole_program(lowered_again, gpt, plan), lower(gpt, plan)
    assert found.program.gpt.layers in LENGTHS
    ops = [found.columns.ops[at] for at in found.table.base.tolist()]
    for name in ("kind", "nbytes", "flops", "replicas", "dtype"):
        assert [getattr(op, name) for op in ops] == [getattr(op, name) for op in expected.ops]
    born, gone = expected.outline.changes(expected.nbytes)
    assert np.array_equal(found.born[:, found.table.base], born)
    assert np.array_equal(found.gone[:, found.table.base][:, :-1], gone[:, :-1])
    assert np.array_equal(found.persistent, expected.outline.persistent(expected.nbytes))
    assert found.peak(0) == expected.peak


def test_what_does_not_grow_evenly_with_the_layers_is_lowered_whole() -> None:
    """A sum over all parameters that is padded to powers of two."""

    def padded(gpt: GPT, plan: Plan) -> Program:
        program = lower(gpt, plan)
        ops = [
            replace(op, nbytes=2 ** gpt.layers.bit_length()) if op.purpose == NORM_REDUCE else op
            for op in program.ops
        ]
        return replace(program, ops=tuple(ops))

    gpt, plan = replace(TINY, layers=WHOLE), plan_of("dp=4,z=2")
    assert whole_program(lower, gpt, plan).program.gpt.layers in LENGTHS
    found = whole_program(padded, gpt, plan)
    assert found.program.gpt.layers == WHOLE
    assert [op.nbytes for op in found.columns.ops] == [op.nbytes for op in padded(gpt, plan).ops]


def of_all(gpt: GPT, plan: Plan, changed: Callable[[Program], Program]) -> None:
    """That programs changed so, of however many layers, are grown to what they are as a whole."""

    def lowered(gpt: GPT, plan: Plan) -> Program:
        return changed(lower(gpt, plan))

    found, expected = whole_program(lowered, gpt, plan), lowered(gpt, plan)
    born, gone = expected.outline.changes(expected.nbytes)
    assert np.array_equal(found.born[:, found.table.base], born)
    assert np.array_equal(found.gone[:, found.table.base][:, :-1], gone[:, :-1])
    assert np.array_equal(found.persistent, expected.outline.persistent(expected.nbytes))


@pytest.mark.parametrize("name", ["loss", "clip.scale"])
def test_a_buffer_of_no_layer_need_not_grow_evenly(name: str) -> None:
    """One is there all the time, the other is made behind all layers: of 2, 4, 8, ... numbers."""

    def padded(program: Program) -> Program:
        large = replace(program.buffers[name], shape=(2 ** program.gpt.layers.bit_length(),))
        return replace(program, buffers={**program.buffers, name: large})

    of_all(replace(TINY, layers=WHOLE), plan_of("dp=4,z=2,recompute=full"), padded)


def test_what_is_kept_of_one_layer_is_not_kept_of_each() -> None:
    """An op without bytes, behind all layers, reads what the third of them made."""

    def kept(program: Program) -> Program:
        late = [op.purpose == NORM_REDUCE for op in program.ops].index(True)
        extra = ("m0.l2.up.o",) if program.gpt.layers > 2 else ()
        last = replace(program.ops[late], nbytes=0, reads=(*program.ops[late].reads, *extra))
        return replace(program, ops=(*program.ops[:late], last, *program.ops[late + 1 :]))

    of_all(replace(TINY, layers=WHOLE), plan_of("dp=4,z=2,recompute=full"), kept)
