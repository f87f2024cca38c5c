"""What collectives take from compute beside them, where it can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.engine.interference import FENCE, CarryIn, Interference, interference_of
from tests.blocks import BLOCK
from tests.simulator.worlds import by_hand, compute, reduce
from workload.op import BACKWARD, Block, Op, layer_part

HALF = 0.5


def interference(*ops: Op, carry_in: tuple[str, ...] = ()) -> Interference:
    program = by_hand("tp=2", *ops)
    return interference_of(program.ops, program.waits, carry_in)


def slowed(found: Interference, ticks: list[int], carry_in: CarryIn | None = None) -> list[int]:
    each: list[int] = found.slowed(np.array(ticks, dtype=np.int64), HALF, carry_in).tolist()
    pairs = np.array([ticks, ticks], dtype=np.int64).T  # of two plans alike
    both = found.slowed(pairs, HALF, carry_in)
    assert both.T.tolist() == [each, each]
    return each


def sums(name: str, buffer: str) -> Op:
    return reduce(name, buffer, "tp", 1, "tp")


def in_slot(block: Block, *ops: Op) -> list[Op]:
    return [replace(op, block=block) for op in ops]


def test_a_short_collective_takes_its_share_of_its_own_time() -> None:
    found = interference(compute("a", writes="a"), sums("s", "a"), compute("b", writes="b"))
    assert slowed(found, [10, 4, 100]) == [10, 4, 102]


def test_a_long_collective_takes_of_the_time_for_which_there_is_compute_beside_it() -> None:
    """Compute of 10 that loses half of the time takes 20."""
    found = interference(compute("a", writes="a"), sums("s", "a"), compute("b", writes="b"))
    assert slowed(found, [10, 400, 10]) == [10, 400, 20]


def test_several_compute_ops_may_run_beside_one_collective() -> None:
    found = interference(
        compute("a", writes="a"), sums("s", "a"), compute("b", writes="b"), compute("c", writes="c")
    )
    assert slowed(found, [10, 30, 10, 5]) == [10, 30, 25, 5]


def test_the_next_collective_of_a_stream_ends_the_time_of_the_one_before() -> None:
    found = interference(
        compute("a", writes="a"),
        sums("s", "a"),
        compute("b", writes="b"),
        sums("t", "b"),
        compute("c", writes="c"),
    )
    assert slowed(found, [10, 400, 10, 4, 10]) == [10, 400, 20, 4, 12]


def test_what_compute_waits_for_takes_nothing_from_it() -> None:
    found = interference(
        compute("a", writes="a"), sums("s", "a"), compute("b", reads="a", writes="b")
    )
    assert slowed(found, [10, 400, 10]) == [10, 400, 10]


def test_a_collective_behind_a_slot_runs_beside_the_next_one_and_no_further() -> None:
    found = interference(
        *in_slot(Block(0, layer_part(0), BACKWARD), compute("a", writes="a"), sums("s", "a")),
        *in_slot(Block(1, layer_part(0), BACKWARD), compute("b", writes="b")),
        *in_slot(Block(2, layer_part(0), BACKWARD), compute("c", writes="c")),
    )
    assert slowed(found, [10, 400, 10, 10]) == [10, 400, 20, 10]


def test_slots_by_themselves_hand_on_what_is_under_way() -> None:
    first = interference(compute("a", writes="a"), sums("s", "a"), sums("t", "a"))
    carry_in = first.carry_out(np.array([10, 40, 2]), {})
    assert carry_in == {"tp": 42}
    then = interference(compute("b", writes="b"), carry_in=("tp",))
    assert slowed(then, [100], carry_in) == [121]
    assert then.carry_out(np.array([121]), carry_in) == {}


def test_blocking_collectives_are_no_compute_beside_which_another_runs() -> None:
    """Beside are the two compute ops of 10, which last 40 if they lose half of the time."""
    found = interference(
        compute("a", writes="a"),
        sums("s", "a"),
        compute("b", writes="b"),
        reduce("blocking", "c", "tp", 1),
        compute("d", writes="d"),
    )
    assert slowed(found, [10, 400, 10, 50, 10]) == [10, 400, 30, 50, 10]


def test_what_follows_the_collective_that_is_waited_for_goes_on_beside_compute() -> None:
    """Two that take 44 together: the wait for the first of them does not end the second."""
    found = interference(
        compute("a", writes="a"),
        sums("s", "a"),
        sums("t", "e"),
        compute("b", writes="b"),
        compute("c", reads="a", writes="c"),
        compute("d", writes="d"),
    )
    assert slowed(found, [10, 4, 40, 10, 10, 10]) == [10, 4, 40, 32, 10, 10]


def test_what_was_under_way_is_over_once_a_later_one_of_its_stream_is_waited_for() -> None:
    """Of 100 ticks due and sums of 4 and 4 only the last, of 4, is left beside compute."""
    found = interference(
        sums("s", "a"),
        sums("t", "e"),
        compute("b", reads="a", writes="b"),
        carry_in=("tp",),
    )
    assert slowed(found, [4, 4, 100], {"tp": 100}) == [4, 4, 102]


def test_the_two_halves_of_a_split_backward_pass_are_slots_of_their_own() -> None:
    found = interference(
        *in_slot(Block(0, layer_part(0), BACKWARD), compute("a", writes="a"), sums("s", "a")),
        *in_slot(Block(0, layer_part(0), BACKWARD), compute("b", writes="b")),
        *in_slot(Block(0, layer_part(0), BACKWARD, deferred=True), compute("c", writes="c")),
    )
    assert slowed(found, [10, 400, 10, 10]) == [10, 400, 20, 10]


def test_a_fence_takes_no_time_that_could_grow() -> None:
    fence = Op("f", FENCE, (), (), BLOCK)
    found = interference(compute("a", writes="a"), sums("s", "a"), fence, compute("b", writes="b"))
    assert slowed(found, [10, 4, 0, 100]) == [10, 4, 0, 102]
