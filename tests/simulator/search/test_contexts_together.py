"""Programs of several contexts at once are those of each alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.search.bounds.batched_programs import kinds, sized
from simulator.search.problem import SearchProblem
from simulator.search.space import space_of
from tests.simulator.search.drawn import MIXTURE

MODELS: tuple[dict[str, Any], ...] = ({}, {"document": 256}, {"window": 256, "global_every": 2})
RECIPES = ("none", "fp8", "fp8-tensorwise", "fp8-blockwise")


@pytest.mark.parametrize(
    ("kind", "recipe", "more"),
    [
        pytest.param(kind, recipe, more, marks=() if at == number else pytest.mark.slow)
        for kind in ("all_gather", "ulysses")
        for at, recipe in enumerate(RECIPES)
        for number, more in enumerate(MODELS)
    ],
)
def test_a_program_of_several_contexts_has_the_ops_of_each(
    kind: str, recipe: str, more: dict[str, Any]
) -> None:
    fixed = {"context_kind": kind, "recipe": recipe, "tp": 1, "y": 1, "pp": 1, "zero": 1}
    gpt = MIXTURE.changed(sequence=32768, **more)
    space = space_of(SearchProblem(gpt, 16, 16, fixed))
    parts = kinds(space, np.flatnonzero(space.micro_batches > 1), together=True)
    rows = max(parts, key=lambda rows: len(np.unique(space.columns["cp"][rows])))
    seen = set[int]()
    for some in sized(space, rows, together=True):
        contexts = space.columns["cp"][some.rows]
        for at in np.unique(contexts, return_index=True)[1].tolist():
            alone = next(sized(space, some.rows[[at]], together=True))
            ops = [op for op in some.program.ops if op.block.micro_batch == 0]
            own = [op for op in alone.program.ops if op.block.micro_batch == 0]
            assert [op.name for op in ops] == [op.name for op in own]
            for op, one in zip(ops, own, strict=True):
                for size, single in ((op.nbytes, one.nbytes), (op.flops, one.flops)):
                    assert some.values(size)[at] == alone.values(single)[0], op.name
            seen.add(int(contexts[at]))
    assert len(seen) > 1
