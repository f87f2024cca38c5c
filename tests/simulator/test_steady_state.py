"""Micro-batches that repeat, in programs written by hand: when further ones may be left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simulator.engine.columns import columns_of
from simulator.engine.simulate import SimulatedOps, simulate_ops
from simulator.engine.steady_state import Unit, followed, periods, recurring_unit
from simulator.engine.stream_graph import graph_of
from simulator.ranks.classes import classes_of
from tests.simulator.worlds import GivenSeconds, SmallFabric, by_hand, compute, reduce
from workload.op import Op

S = 10**12  # ticks of a second
MB = 1_000_000
FEW, MORE = 10, 13
FABRIC = SmallFabric(bytes_per_s=1e6, launch_s=0.0, devices_per_node=2)  # 1 MB over x: 1 s


def simulated(ops: list[Op], seconds: Callable[[str], float]) -> SimulatedOps:
    program = by_hand("tp=2", *ops)
    given = {op.name: seconds(op.label) for op in ops if not op.communicates}
    return simulate_ops(program, GivenSeconds(**given), classes_of([program], FABRIC))


def unit_of(run: SimulatedOps) -> Unit:
    found = recurring_unit(columns_of(run.program.outline))
    assert found is not None
    return found


def further(run: SimulatedOps) -> int | None:
    """By how much a further micro-batch puts off what follows."""
    graph = graph_of(run.program.outline)
    pairs = followed(graph.columns)
    found = periods(unit_of(run), pairs, graph.collectives, run.start, run.end)
    if found is None:
        return None
    (ticks,) = found[0]
    return int(ticks)


def assert_steady(
    ops: Callable[[int], list[Op]], seconds: Callable[[str], float], each: float
) -> None:
    """A few micro-batches say how long a step of more takes, and that is so."""
    few, more = simulated(ops(FEW), seconds), simulated(ops(MORE), seconds)
    assert further(few) == each * S
    assert more.end.max() == few.end.max() + (MORE - FEW) * each * S


def gathers(count: int) -> list[Op]:
    """Work that waits for a gather, which is issued between the work before it and some rest."""
    found = [compute("m0.gather", writes="p0", stream="z")]
    for m in range(count):
        found.append(compute(f"m{m}.work", reads=f"p{m}", writes=f"q{m}"))
        if m + 1 < count:
            found.append(compute(f"m{m + 1}.gather", writes=f"p{m + 1}", stream="z"))
        found.append(compute(f"m{m}.rest", reads=f"q{m}", writes=f"r{m}"))
    return found


def test_the_slower_of_two_streams_says_how_long_a_micro_batch_takes() -> None:
    quick, slow = ({"gather": each, "work": 2.0, "rest": 1.0}.__getitem__ for each in (1.0, 4.0))
    assert_steady(gathers, quick, each=3.0)
    assert_steady(gathers, slow, each=6.0)


def test_a_unit_has_what_is_issued_ahead_for_the_next_micro_batch() -> None:
    run = simulated(gathers(FEW), lambda _: 1.0)
    names = [op.name for op in run.program.ops[unit_of(run).copied]]
    assert names == ["m4.gather", "m3.rest", "m4.work"]


def test_the_unit_behind_the_copied_one_must_be_like_it() -> None:
    """A copy begins like the third unit, which is the first to be slower here: what the copied one
    has beside it at its end would be another than what the copy brings."""
    run = simulated(gathers(FEW), lambda _: 1.0)
    third = slice(unit_of(run).stop, unit_of(run).last)
    late = replace(run, end=run.end.copy())
    late.end[:, third] += 1
    assert further(run) == 2 * S
    assert further(late) is None


def test_a_stream_that_falls_ever_further_behind_says_nothing() -> None:
    def ops(count: int) -> list[Op]:
        reduces = [reduce(f"m{m}.sum", f"g{m}", "tp", 3 * MB, "s") for m in range(count)]
        works = [compute(f"m{m}.work", writes=f"g{m}") for m in range(count)]
        return [op for pair in zip(works, reduces, strict=True) for op in pair]

    assert further(simulated(ops(FEW), lambda _: 2.0)) is None
    assert_steady(ops, lambda _: 4.0, each=4.0)


def test_what_waits_for_something_long_ago_says_nothing() -> None:
    """The last op waits for what was begun before all micro-batches: however many there are, it
    starts when that is over."""

    def ops(count: int) -> list[Op]:
        works = [compute(f"m{m}.work", writes=f"q{m}") for m in range(count)]
        begun = compute("begin", writes="b", stream="s")
        return [begun, *works, compute("end", reads=f"b q{count - 1}", writes="c")]

    late = {"begin": 20.0, "work": 1.0, "end": 1.0}.__getitem__
    assert further(simulated(ops(FEW), late)) is None
    assert_steady(ops, {"begin": 4.0, "work": 1.0, "end": 1.0}.__getitem__, each=1.0)


def test_what_is_over_last_must_not_have_begun_before_all_micro_batches() -> None:
    def ops(count: int) -> list[Op]:
        works = [compute(f"m{m}.work", writes=f"q{m}") for m in range(count)]
        return [compute("begin", writes="b", stream="s"), *works]

    assert further(simulated(ops(FEW), {"begin": 100.0, "work": 1.0}.__getitem__)) is None
    assert_steady(ops, {"begin": 4.0, "work": 1.0}.__getitem__, each=1.0)


def test_what_follows_nothing_says_nothing() -> None:
    """An op behind all micro-batches that nobody holds up starts at once, whatever their number."""
    ops = [compute(f"m{m}.work", writes=f"q{m}", stream="s") for m in range(FEW)]
    run = simulated([*ops, compute("end", writes="c")], {"work": 1.0, "end": 1000.0}.__getitem__)
    assert further(run) is None


def test_a_collective_in_flight_from_before_says_nothing() -> None:
    """It slows those of the first micro-batches, and not those of all."""

    def ops(first_bytes: int) -> Callable[[int], list[Op]]:
        def some(count: int) -> list[Op]:
            found = [compute("begin", writes="b"), reduce("first", "b", "tp", first_bytes, "s")]
            for m in range(count):
                found += [
                    compute(f"m{m}.work", writes=f"q{m}"),
                    reduce(f"m{m}.sum", f"q{m}", "tp", MB // 10, "t"),
                ]
            return found

        return some

    for megabytes in (4, 7, 30):  # over while units are compared, behind these, and last of all
        assert further(simulated(ops(megabytes * MB)(FEW), lambda _: 1.0)) is None
    assert_steady(ops(MB // 2), lambda _: 1.0, each=1.0)


def test_too_few_micro_batches_and_those_that_differ_have_no_unit() -> None:
    assert recurring_unit(columns_of(by_hand("tp=2", *gathers(4)).outline)) is None
    at = 3 * 3 + 1
    for other in (
        compute("m3.other", reads="p3", writes="q3"),
        compute("m3.work", reads="p1", writes="q3"),
        compute("m3.work", reads="p3", writes="q3", stream="y"),
    ):
        ops = gathers(FEW)
        assert ops[at].name == "m3.work"
        assert recurring_unit(columns_of(by_hand("tp=2", *ops).outline)) is not None
        ops[at] = other
        assert recurring_unit(columns_of(by_hand("tp=2", *ops).outline)) is None
