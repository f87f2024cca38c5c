"""Playing small programs whose timing can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.columns import columns_of
from simulator.engine.simulate import (
    Prices,
    durations_of,
    simulate_ops,
    simulate_timeline,
    simulate_unfolded,
)
from simulator.engine.stream_graph import graph_of
from simulator.engine.streams import RankTask
from simulator.engine.ticks import to_seconds
from simulator.ranks.classes import classes_of
from tests.simulator.worlds import (
    TINY,
    GivenSeconds,
    SmallCosts,
    SmallFabric,
    by_hand,
    compute,
    lowered,
    reduce,
)
from workload.op import COMPUTE
from workload.program import Program
from workload.timeline import Timeline

FABRIC = SmallFabric(bytes_per_s=1e6, launch_s=0.0)  # two ranks all-reduce 1 MB in 1 s


def starts(timeline: Timeline, rank: int = 0) -> dict[str, float]:
    return {span.op.name: span.start_s for span in timeline.of_rank(rank)}


def test_ops_of_two_streams_run_side_by_side_until_one_reads_what_the_other_wrote() -> None:
    program = by_hand(
        "tp=1",
        compute("long", writes="a", stream="other"),
        compute("short", writes="b"),
        compute("both", reads="a b", writes="c"),
    )
    timeline = simulate_timeline([program], GivenSeconds(long=3.0, short=1.0, both=1.0), FABRIC)
    assert starts(timeline) == {"long": 0.0, "short": 0.0, "both": 3.0}
    assert timeline.step_s == 4.0


def test_a_blocking_collective_adds_its_time_and_an_overlapped_one_hides_it() -> None:
    costs = GivenSeconds(first=1.0, second=2.0, last=0.5)

    def step_s(stream: str) -> float:
        program = by_hand(
            "tp=2",
            compute("first", writes="a"),
            reduce("reduce", "a", "tp", 1_000_000, stream),
            compute("second", writes="b"),
            compute("last", reads="a b", writes="c"),
        )
        return simulate_timeline([program], costs, FABRIC).step_s

    assert step_s(COMPUTE) == 1.0 + 1.0 + 2.0 + 0.5
    assert step_s("tp") == 1.0 + max(1.0, 2.0) + 0.5


def test_a_collective_starts_when_the_slower_class_has_come_to_it() -> None:
    """tp=3 on nodes of 4: the groups of ranks 0-2 and 9-11 lie in one node, the others in two.

    Those take 2 us longer for their first all-reduce, and make everyone in their data groups wait.
    """
    program = by_hand(
        "tp=3,dp=4",
        reduce("inner", "a", "tp", 0),
        compute("work", reads="a", writes="b"),
        reduce("outer", "b", "dp", 0),
    )
    fabric = SmallFabric(bytes_per_s=1e6, launch_s=1e-6)
    timeline = simulate_timeline([program], GivenSeconds(work=1.0), fabric, unfold=True)
    assert starts(timeline, rank=0)["work"] == 1e-6
    assert starts(timeline, rank=3)["work"] == 2e-6
    assert starts(timeline, rank=0)["outer"] == starts(timeline, rank=3)["outer"] == 1.000002


def test_ops_take_as_long_as_their_sizes_however_often_they_are_asked_for() -> None:
    """On tp=2 with 1 GB/s on the device and 1 MB/s between the two."""
    sizes = [(1_000_000, 3_000), (2_000_000, 5_000)]
    ops = []
    for number, (of_work, of_sum) in enumerate(sizes):
        work, buffer = compute(f"m{number}.l0.work", writes=f"a{number}"), f"a{number}"
        summed = reduce(f"m{number}.l0.sum", buffer, "tp", of_sum)
        ops += [replace(work, nbytes=of_work), summed]
    program = by_hand("tp=2", *ops)
    assert len(columns_of(program.outline).sorts.ops) == 4
    prices = Prices(SmallCosts(launch_s=0.0), classes_of([program], FABRIC))
    tasks = [RankTask(0, graph_of(program.outline))]
    for _ in ("found", "known"):
        (each,) = durations_of(tasks, prices)
        seconds = [to_seconds(ticks) for ticks in each.tolist()]
        assert seconds == [0.001, 0.003, 0.002, 0.005]


@pytest.mark.parametrize("bytes_per_s", [1e8, 1e9, 1e10])
def test_oar_hides_the_smaller_of_all_reduce_and_weight_gradient(bytes_per_s: float) -> None:
    """On tp=2 without recomputation, each of a layer's dI all-reduces runs beside a dW matmul."""
    costs, fabric = SmallCosts(), SmallFabric(bytes_per_s=bytes_per_s)
    blocking = lowered(TINY, "tp=2,overlap=none")
    spans = {
        span.op.name: span.duration_s for span in simulate_timeline([blocking], costs, fabric).spans
    }
    reduces = [name for name in spans if name.endswith(".grad.reduce")]
    counterparts = [name.replace(".grad.reduce", ".grad.weight") for name in reduces]
    hidden = sum(min(spans[a], spans[b]) for a, b in zip(reduces, counterparts, strict=True))
    overlapped = simulate_timeline([lowered(TINY, "tp=2,overlap=oar")], costs, fabric)
    whole = sum(spans.values())
    assert overlapped.step_s == pytest.approx(whole - hidden, rel=1e-9)
    assert len(reduces) == 2 * TINY.layers + 1


@pytest.mark.parametrize("plan", ["tp=2,y=2", "tp=3,dp=4", "tp=2,z=3,dp=2", "y=3,z=2", "z=6,dp=3"])
@pytest.mark.parametrize("overlap", ["none", "all"])
def test_rank_classes_have_the_timing_of_every_rank_on_its_own(plan: str, overlap: str) -> None:
    gpt = TINY.changed(hidden=96, heads=12, ffn=96)
    program = lowered(gpt, f"{plan},overlap={overlap}", 2)
    costs, fabric = SmallCosts(), SmallFabric(bytes_per_s=3e8)
    folded = simulate_unfolded(program, costs, fabric)
    every = simulate_unfolded(program, costs, fabric, unfold=True)
    assert len(every.start) == program.plan.grid.ranks
    timings = {row.tobytes() for row in folded.start}
    assert timings == {row.tobytes() for row in every.start}
    for number, rank in enumerate(folded.network.ranks):
        assert (folded.start[number] == every.start[rank]).all()
        assert (folded.end[number] == every.end[rank]).all()


def test_the_same_program_gives_the_same_timeline_twice() -> None:
    program = lowered(TINY, "tp=2,z=2,dp=3", 2)
    first, second = (
        repr(simulate_timeline([program], SmallCosts(), SmallFabric())) for _ in range(2)
    )
    assert first == second


WORLDS = {
    "plan": st.sampled_from(["tp=2,y=2,z=2", "z=4,dp=2", "tp=4", "dp=6", "y=2,dp=2"]),
    "overlap": st.sampled_from(["none", "all", "oar", "ors+oag", "dp"]),
    "bytes_per_s": st.floats(1e5, 1e12),
    "flops_per_s": st.floats(1e7, 1e12),
}


def played(
    program: Program, flops_per_s: float, bytes_per_s: float, *, axes_share: bool = True
) -> Any:
    costs = SmallCosts(flops_per_s=flops_per_s)
    fabric = SmallFabric(bytes_per_s=bytes_per_s, axes_share=axes_share)
    return simulate_ops(program, costs, classes_of([program], fabric))


@settings(deadline=None, max_examples=40, derandomize=True)
@given(**WORLDS)
def test_a_step_lasts_as_long_as_its_busiest_stream_or_longer_and_no_longer_than_all_together(
    plan: str, overlap: str, bytes_per_s: float, flops_per_s: float
) -> None:
    program = lowered(TINY, f"{plan},overlap={overlap}")
    run = played(program, flops_per_s, bytes_per_s)
    for start, end in zip(run.start, run.end, strict=True):
        busy: dict[str, int] = {}
        for op, ticks in zip(program.ops, (end - start).tolist(), strict=True):
            busy[op.stream] = busy.get(op.stream, 0) + ticks
        assert max(busy.values()) <= end.max()
    assert run.end.max() <= (run.end - run.start).max(axis=0).sum()


@settings(deadline=None, max_examples=40, derandomize=True)
@given(**WORLDS, slower=st.floats(1.0, 100.0))
def test_a_slower_link_never_makes_a_step_faster(
    plan: str, overlap: str, bytes_per_s: float, flops_per_s: float, slower: float
) -> None:
    """Where axes share links this holds of every collective but not of every step: one that comes
    later may leave the link to the one that all wait for."""
    program = lowered(TINY, f"{plan},overlap={overlap}")
    fast = played(program, flops_per_s, bytes_per_s, axes_share=False).end
    slow = played(program, flops_per_s, bytes_per_s / slower, axes_share=False).end
    assert (slow >= fast).all()
    assert (played(program, flops_per_s, bytes_per_s / slower).end >= fast).all()


def test_a_second_holds_a_million_million_ticks() -> None:
    assert to_seconds(10**12) == 1.0


def halved_s(program: Program, **seconds: float) -> float:
    """A step in which overlapped collectives take half of the compute beside them."""
    fabric = replace(FABRIC, compute_share=0.5)
    return simulate_timeline([program], GivenSeconds(**seconds), fabric).step_s


def test_an_overlapped_collective_takes_its_share_from_the_compute_beside_it() -> None:
    interference = by_hand(
        "tp=2",
        compute("first", writes="a"),
        reduce("reduce", "a", "tp", 1_000_000, "tp"),
        compute("second", writes="b"),
        compute("last", reads="a b", writes="c"),
    )
    # the all-reduce lasts 1 s, and takes half of it
    assert halved_s(interference, first=1.0, second=2.0, last=0.5) == pytest.approx(1.0 + 2.5 + 0.5)


def test_a_copy_of_another_stream_takes_nothing_from_the_compute_beside_it() -> None:
    interference = by_hand(
        "tp=1",
        compute("copy", writes="a", stream="to_device"),
        compute("work", writes="b"),
        compute("last", reads="a b", writes="c"),
    )
    assert halved_s(interference, copy=2.0, work=1.0, last=0.5) == pytest.approx(2.0 + 0.5)


def test_a_collective_that_compute_waits_for_takes_nothing_from_it() -> None:
    exposed = by_hand(
        "tp=2",
        compute("first", writes="a"),
        reduce("reduce", "a", "tp", 1_000_000, "tp"),
        compute("last", reads="a", writes="c"),
    )
    assert halved_s(exposed, first=1.0, last=0.5) == pytest.approx(1.0 + 1.0 + 0.5)


def test_a_wait_for_an_earlier_collective_does_not_spare_a_later_one_of_its_stream() -> None:
    ahead = by_hand(
        "tp=2",
        compute("first", writes="a"),
        reduce("earlier", "a", "tp", 1_000_000, "tp"),
        reduce("later", "b", "tp", 1_000_000, "tp"),
        compute("second", reads="a", writes="c"),
        compute("last", reads="b c", writes="d"),
    )
    # `second` waits for the earlier one until 2 s, and shares its 2 s with the later one.
    assert halved_s(ahead, first=1.0, second=2.0, last=0.5) == pytest.approx(2.0 + 2.5 + 0.5)
