"""Guessed timings of programs written by hand: which of them the proof of folding accepts.

Twelve layers stand for eighteen, with six left out between the first and the last six. A layer's
work takes 10 ticks on the compute stream; its gather takes 11 on another, which runs ahead, since
all gathers are issued before any work.
"""

from __future__ import annotations

import numpy as np

from simulator.engine.fold_proof import FoldedTimes, layer_axis, micro_batch_axis
from simulator.engine.op_position import Cut
from simulator.ranks.classes import classes_of
from tests.simulator.worlds import SmallFabric, by_hand, compute
from workload.op import Op

KEPT, OMITTED = 12, 6
WORK, GATHER = 10, 11
LAYERS = range(KEPT)


def whole(layer: int) -> int:
    """Which of the eighteen layers one of the twelve stands for."""
    return layer if layer < KEPT // 2 else layer + OMITTED


def program(reads: dict[int, str]) -> list[Op]:
    """All gathers, something that lasts a while, and all work; a layer's work may read more."""
    gathers = [compute(f"m0.l{n}.gather", writes=f"p{n}", stream="z") for n in LAYERS]
    works = [compute(f"m0.l{n}.work", reads=reads.get(n, ""), writes=f"q{n}") for n in LAYERS]
    return [*gathers, compute("m0.begin", writes="b"), *works]


def guess(ops: list[Op], works: list[int]) -> FoldedTimes:
    """The timing in which each layer's work starts then."""
    gathers = [GATHER * whole(n) for n in LAYERS]
    starts = [*gathers, 0, *works]
    lasts = [GATHER] * KEPT + [works[0]] + [WORK] * KEPT
    folded = by_hand("x=1", *ops)
    layers = layer_axis(Cut(KEPT, KEPT + OMITTED), folded.outline)
    micro_batches = micro_batch_axis(Cut(1, 1), folded.outline)
    start = np.array([starts], dtype=np.int64)
    network = classes_of([folded], SmallFabric())
    return FoldedTimes(folded, network, layers, micro_batches, start, start + np.array([lasts]))


def one_after_the_other(begin: int) -> list[int]:
    return [begin + WORK * whole(n) for n in LAYERS]


def test_work_one_layer_after_the_other_is_the_timing_of_all_layers() -> None:
    assert guess(program({}), one_after_the_other(22)).is_exact()
    late = [start + 5 * (n > 7) for n, start in enumerate(one_after_the_other(22))]
    assert not guess(program({}), late).is_exact()  # nobody made the ninth layer wait


def test_an_op_must_not_start_before_what_it_waits_for_in_any_layer_that_was_left_out() -> None:
    """The gather of layer n ends at 11 + 11 n, its work starts 22 + 10 n: in layer 12 too early.

    Layer 6, the first behind the cut, stands for layers 6 to 12; it alone waits for its gather.
    """
    waits = program({6: "p6"})
    assert not guess(waits, one_after_the_other(22)).is_exact()
    assert guess(waits, one_after_the_other(23)).is_exact()


def test_layers_beside_the_cut_that_do_not_keep_step_prove_nothing() -> None:
    """Layer 7 waits for a gather that is over 5 ticks later than the work before it."""
    begin = GATHER * (whole(11) + 1) - WORK * whole(7) - 5
    works = [start + 5 * (n >= 7) for n, start in enumerate(one_after_the_other(begin))]
    assert not guess(program({7: "p11"}), works).is_exact()
    even = one_after_the_other(begin + 5)
    assert guess(program({7: "p11"}), even).is_exact()


def test_nothing_is_known_of_ops_that_follow_others_far_across_the_cut() -> None:
    """How many layers lie between the ends of layers 3 and 8 depends on how many are left out."""
    assert guess(program({8: "q3"}), one_after_the_other(22)).is_exact()  # on one stream
    assert guess(program({8: "p7"}), one_after_the_other(122)).is_exact()
    assert not guess(program({8: "p3"}), one_after_the_other(122)).is_exact()
