"""Where a step's time goes, as its compute stream sees it, in programs timed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.attribution.breakdown import breakdown, last_to_end
from simulator.engine.simulate import SimulatedOps, simulate_ops
from simulator.engine.stream_graph import graph_of
from simulator.engine.ticks import to_seconds
from simulator.ranks.classes import classes_of
from tests.simulator.worlds import GivenSeconds, SmallFabric, by_hand, compute, reduce
from workload.program import Program

FABRIC = SmallFabric(bytes_per_s=1e6, launch_s=0.0, axes_share=False)
MB = 1_000_000


def simulated(program: Program, fabric: SmallFabric, **seconds: float) -> SimulatedOps:
    return simulate_ops(program, GivenSeconds(**seconds), classes_of([program], fabric))


def parts(run: SimulatedOps, copies: Sequence[int] = ()) -> dict[str, float]:
    number, graph = last_to_end(run.end), graph_of(run.program.outline)
    each = np.array(copies or [1] * len(run.program.ops), dtype=np.int64)
    found = breakdown(graph, run.start[number], run.end[number], each, np.zeros_like(each))
    return {name: to_seconds(ticks) for name, ticks in found.items() if ticks}


def test_waiting_is_charged_to_what_was_over_last() -> None:
    """Two pairs of each axis share a node, so 1 MB over x takes 2 s, and 3 MB over y take 6."""
    program = by_hand(
        "tp=2,y=2",
        compute("first", writes="a b"),
        reduce("short", "a", "tp", MB, "tp"),
        reduce("long", "b", "y", 3 * MB, "y"),
        compute("beside", writes="c"),
        compute("last", reads="a b c", writes="d"),
    )
    run = simulated(program, FABRIC, first=1.0, beside=1.5, last=0.5)
    assert parts(run) == {"compute": 3.0, "y": 4.5}


def test_a_collective_on_the_compute_stream_counts_whole_and_one_behind_all_compute_too() -> None:
    program = by_hand(
        "tp=2",
        compute("first", writes="a b"),
        reduce("blocking", "a", "tp", MB),
        reduce("tail", "b", "tp", 3 * MB, "tp"),
        compute("last", reads="a", writes="c"),
    )
    fabric = SmallFabric(bytes_per_s=1e6, launch_s=0.0, devices_per_node=2)
    run = simulated(program, fabric, first=1.0, last=0.5)
    over = to_seconds(int(run.end.max()))
    found = parts(run)
    assert found == {"compute": 1.5, "tp": over - 1.5}
    assert found["tp"] > 3.0


def test_an_op_that_stands_for_three_waits_three_times() -> None:
    program = by_hand(
        "tp=2",
        compute("first", writes="a"),
        reduce("sum", "a", "tp", MB, "tp"),
        compute("last", reads="a", writes="b"),
    )
    fabric = SmallFabric(bytes_per_s=1e6, launch_s=0.0, devices_per_node=2)
    run = simulated(program, fabric, first=1.0, last=0.5)
    assert parts(run) == {"compute": 1.5, "tp": 1.0}
    assert parts(run, [1, 3, 3]) == {"compute": 2.5, "tp": 3.0}


def test_the_step_is_that_of_the_ranks_that_are_over_last() -> None:
    """tp=3 on nodes of 4: groups that lie in two nodes begin 1 s later, and so end."""
    program = by_hand(
        "tp=3,dp=4", reduce("inner", "a", "tp", 0), compute("work", reads="a", writes="b")
    )
    run = simulated(program, SmallFabric(bytes_per_s=1e6, launch_s=1.0), work=1.0)
    assert run.end.max(axis=1).tolist() == [2 * 10**12, 3 * 10**12]
    assert last_to_end(run.end) == 1
    assert parts(run) == {"compute": 1.0, "tp": 2.0}
