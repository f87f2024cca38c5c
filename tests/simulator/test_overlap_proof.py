"""When collectives beside a cut prove how those left out overlap: small tables of times."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.engine.fold_proof import layer_axis, micro_batch_axis
from simulator.engine.op_position import Cut
from simulator.engine.overlap_proof import OpTimes, overlaps_repeat
from tests.simulator.worlds import reduce
from workload.op import Op
from workload.structure import Structure

KEPT, WHOLE = 8, 20
STRANGE = reduce("norm.reduce", "n", "x", 4, "x")


def ops_of(names: tuple[str, str] = ("one", "two")) -> list[Op]:
    """Per layer a collective over x and one over y, each on a stream of its own, and a last one."""
    every = [
        reduce(f"l{layer}.{name}", "a", axis, 4, axis)
        for layer in range(KEPT)
        for name, axis in zip(names, "xy", strict=True)
    ]
    return [*every, STRANGE]


def times(starts: tuple[int, int], steps: tuple[int, int], omitted: int, last: int) -> OpTimes:
    """Each of the two moves by its step from layer to layer and lasts 6; the last one lasts 1."""
    layers = [layer + omitted * (layer >= KEPT // 2) for layer in range(KEPT)]
    start = [at + layer * step for layer in layers for at, step in zip(starts, steps, strict=True)]
    begin = np.array([[*start, last]], dtype=np.int64)
    return OpTimes(begin, begin + np.array([[6] * (2 * KEPT) + [1]]))


def proven(
    starts: tuple[int, int], steps: tuple[int, int] = (10, 10), last: tuple[int, int] = (500, 620)
) -> bool:
    ops = ops_of()
    outline = Structure(ops, {})
    lines = (
        layer_axis(Cut(KEPT, WHOLE), outline),
        micro_batch_axis(Cut(1, 1), outline),
    )
    folded = times(starts, steps, 0, last[0])
    whole = times(starts, steps, WHOLE - KEPT, last[1])
    return overlaps_repeat(ops, lines, (folded, whole, whole))


@pytest.mark.parametrize("second", [0, 3, 8, 17])
def test_collectives_that_keep_step_overlap_alike_in_every_layer(second: int) -> None:
    assert proven((0, second))


def test_one_that_falls_behind_the_other_is_not_proven() -> None:
    assert not proven((0, 3), steps=(10, 11))


def test_one_that_falls_behind_far_away_is_proven() -> None:
    assert proven((0, 1000), steps=(10, 11), last=(2000, 2132))


def test_one_that_stands_among_the_omitted_layers_is_not_proven() -> None:
    """It begins with layer 6 of the 20, which is none of the folded program's."""
    assert not proven((0, 3), last=(500, 66))


def test_one_that_overlaps_the_layer_that_stands_for_the_omitted_is_not_proven() -> None:
    assert not proven((0, 3), last=(42, 620))


def test_layers_that_overlap_others_further_away_than_is_looked_are_not_proven() -> None:
    assert not proven((0, 40))


def test_one_at_the_end_may_overlap_the_last_layer_if_it_moves_along() -> None:
    assert proven((0, 3), last=(77, 197))
    assert not proven((0, 3), last=(77, 198))
