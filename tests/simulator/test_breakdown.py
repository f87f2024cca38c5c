"""Where a step's time goes, as its compute stream sees it, in programs timed by hand."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.attribution.breakdown import breakdown, last_to_end
from simulator.engine.fold_proof import FoldedTimes, layer_axis, micro_batch_axis
from simulator.engine.op_position import Cut
from simulator.engine.simulate import simulate_ops
from simulator.engine.ticks import to_seconds
from simulator.ranks.classes import classes_of
from tests.simulator.worlds import GivenSeconds, SmallFabric, by_hand, compute, reduce
from workload.program import Program

FABRIC = SmallFabric(bytes_per_s=1e6, launch_s=0.0, axes_share=False)
MB = 1_000_000
WHOLE = Cut(1, 1)


def guessed(program: Program, fabric: SmallFabric, **seconds: float) -> FoldedTimes:
    """The program's own timing, with nothing left out."""
    network = classes_of([program], fabric)
    run = simulate_ops(program, GivenSeconds(**seconds), network)
    layers, micro_batches = (
        line(WHOLE, program.outline) for line in (layer_axis, micro_batch_axis)
    )
    return FoldedTimes(program, network, layers, micro_batches, run.start, run.end)


def parts(guess: FoldedTimes, copies: Sequence[int] = ()) -> dict[str, float]:
    number = last_to_end(guess)
    found = breakdown(guess, number, copies or [1] * len(guess.program.ops))
    return {name: to_seconds(ticks) for name, ticks in found.items() if ticks}


def test_waiting_is_charged_to_what_was_over_last() -> None:
    """Two pairs of each axis share a node, so 1 MB over x takes 2 s, and 3 MB over y take 6."""
    program = by_hand(
        "x=2,y=2",
        compute("first", writes="a b"),
        reduce("short", "a", "x", MB, "x"),
        reduce("long", "b", "y", 3 * MB, "y"),
        compute("beside", writes="c"),
        compute("last", reads="a b c", writes="d"),
    )
    guess = guessed(program, FABRIC, first=1.0, beside=1.5, last=0.5)
    assert parts(guess) == {"compute": 3.0, "y": 4.5}


def test_a_collective_on_the_compute_stream_counts_whole_and_one_behind_all_compute_too() -> None:
    program = by_hand(
        "x=2",
        compute("first", writes="a b"),
        reduce("blocking", "a", "x", MB),
        reduce("tail", "b", "x", 3 * MB, "x"),
        compute("last", reads="a", writes="c"),
    )
    fabric = SmallFabric(bytes_per_s=1e6, launch_s=0.0, devices_per_node=2)
    guess = guessed(program, fabric, first=1.0, last=0.5)
    over = to_seconds(int(guess.end.max()))
    found = parts(guess)
    assert found == {"compute": 1.5, "x": over - 1.5}
    assert found["x"] > 3.0


def test_an_op_that_stands_for_three_waits_three_times() -> None:
    program = by_hand(
        "x=2",
        compute("first", writes="a"),
        reduce("sum", "a", "x", MB, "x"),
        compute("last", reads="a", writes="b"),
    )
    fabric = SmallFabric(bytes_per_s=1e6, launch_s=0.0, devices_per_node=2)
    guess = guessed(program, fabric, first=1.0, last=0.5)
    assert parts(guess) == {"compute": 1.5, "x": 1.0}
    assert parts(guess, [1, 3, 3]) == {"compute": 2.5, "x": 3.0}


def test_the_step_is_that_of_the_ranks_that_are_over_last() -> None:
    """x=3 on nodes of 4: groups that lie in two nodes begin 1 s later, and so end."""
    program = by_hand(
        "x=3,data=4", reduce("inner", "a", "x", 0), compute("work", reads="a", writes="b")
    )
    guess = guessed(program, SmallFabric(bytes_per_s=1e6, launch_s=1.0), work=1.0)
    assert guess.end.max(axis=1).tolist() == [2 * 10**12, 3 * 10**12]
    assert last_to_end(guess) == 1
    assert parts(guess) == {"compute": 1.0, "x": 2.0}
