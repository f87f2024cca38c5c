"""Every rank without noise is the prediction to the tick, and with noise what follows by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.columns import columns_of
from simulator.engine.simulate import Prices
from simulator.engine.ticks import TICKS_PER_S
from simulator.engine.whole_program import WholeProgram
from simulator.engine.whole_step import MICRO_BATCHES, _timed, simulate_step
from simulator.noise.all_ranks import all_ranks
from simulator.noise.noise import Draw, Factors, Noise
from simulator.noise.one_stage import OneStage
from simulator.noise.played import END, OWN, AllRanks, Played
from simulator.pipeline import simulate_pipeline
from simulator.ranks.classes import classes_of
from tests.simulator.drawn_steps import DrawnStep, drawn_steps
from tests.simulator.worlds import (
    GivenSeconds,
    SmallCosts,
    SmallFabric,
    by_hand,
    compute,
    plan_of,
    reduce,
)
from topologies.session import Session
from workload.gpt import GPT
from workload.op import Op

PLAIN = Draw(0, (0,))
SMALL = GPT.of(name="small", layers=2, hidden=48, heads=12, ffn=96, sequence=16, vocab=64)


def step_of(drawn: DrawnStep, fabric: SmallFabric) -> tuple[AllRanks, int]:
    """A step on every rank, and the ticks of its prediction."""
    costs = SmallCosts(issue_s=drawn.issue_s)
    simulate = simulate_pipeline if drawn.plan.pp > 1 else simulate_step
    predicted = simulate(drawn.gpt, drawn.plan, costs, fabric)
    step = all_ranks(drawn.gpt, drawn.plan, costs, fabric)
    return step, sum(predicted.parts_ticks.values())


def drawn_step(seed: int, *, shuffled: bool) -> tuple[AllRanks, int]:
    """A drawn step, with ranks on nodes one after another or anywhere."""
    drawn = next(drawn_steps(seed))
    nodes = [rank // 4 for rank in range(drawn.plan.grid.ranks)]
    if shuffled:
        random.Random(seed).shuffle(nodes)
    fabric = SmallFabric(
        bytes_per_s=drawn.bytes_per_s, compute_share=drawn.share, node_of=tuple(nodes)
    )
    with Session():
        return step_of(drawn, fabric)


@pytest.mark.slow
@settings(deadline=None, max_examples=30, derandomize=True)
@given(seed=st.integers(0, 10**6), shuffled=st.booleans())
def test_without_noise_a_step_is_the_prediction_to_the_tick(seed: int, shuffled: bool) -> None:
    step, ticks = drawn_step(seed, shuffled=shuffled)
    played = step.play(PLAIN)
    assert played.ticks.tolist() == [ticks]
    parts = [float(each[0]) for each in played.parts.values()]
    assert sum(parts) == pytest.approx(ticks, rel=1e-12)


@settings(deadline=None, max_examples=4, derandomize=True)
@given(seed=st.integers(0, 10**6), slower=st.sampled_from([0.05, 0.5]))
def test_more_noise_is_never_faster_and_devices_cost_at_most_their_factor(
    seed: int, slower: float
) -> None:
    step, ticks = drawn_step(seed, shuffled=False)
    ranks = next(drawn_steps(seed)).plan.grid.ranks
    one, few = (1 + slower * (np.arange(ranks) % each == 0) for each in (ranks, 3))
    every = np.full(ranks, 1 + slower)
    draw = Draw(0, range(4), np.stack([np.ones(ranks), one, np.maximum(one, few), every]))
    found = step.play(draw).ticks.tolist()
    assert found[0] == ticks
    assert found == sorted(found)
    assert found[-1] <= (1 + slower) * ticks * (1 + 1e-12)


@pytest.mark.slow
@settings(deadline=None, max_examples=8, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_jitter_that_only_delays_never_makes_a_step_faster(seed: int) -> None:
    step, ticks = drawn_step(seed, shuffled=False)
    pool = np.random.default_rng(0).exponential(0.1, 10_000)
    found = [step.play(Draw(1, (0,), None, 1 + each * pool)).ticks[0] for each in (0, 1, 2)]
    assert found[0] == ticks
    assert found == sorted(found)


@pytest.mark.parametrize("text", ["z=2,dp=2,zero=2", "tp=2,y=2,overlap=none", "z=4,zero=3"])
def test_micro_batches_that_were_left_out_are_executed(text: str) -> None:
    plan = plan_of(text, 50)
    costs, fabric = SmallCosts(), SmallFabric(bytes_per_s=3e8)
    predicted = simulate_step(SMALL, plan, costs, fabric)
    assert predicted.micro_batches == MICRO_BATCHES
    step = all_ranks(SMALL, plan, costs, fabric)
    assert step.ops == predicted.ops
    assert step.play(PLAIN).ticks[0] == sum(predicted.parts_ticks.values())
    slow = step.play(Draw(0, (0,), np.full((1, 4), 1.5))).ticks[0]
    assert slow > step.play(PLAIN).ticks[0]


def stage_of(text: str, *ops: Op, **seconds: float) -> OneStage:
    """A program written by hand."""
    program = by_hand(text, *ops)
    program = replace(program, plan=plan_of(text))
    whole = WholeProgram(program, columns_of(program.outline))
    fabric = SmallFabric(launch_s=1.0, bytes_per_s=1e30)
    timed = _timed(whole, 1, Prices(GivenSeconds(**seconds), classes_of([program], fabric)))
    assert timed is not None
    return OneStage(timed)


def played(
    text: str,
    speeds: list[float] | Factors,
    *ops: Op,
    pool: Factors | None = None,
    **seconds: float,
) -> Played:
    """A program written by hand, with a factor for each rank's compute, and jitter of a pool."""
    return stage_of(text, *ops, **seconds).play(Draw(0, (0,), np.atleast_2d(speeds), pool))


def seconds_of(found: Played) -> dict[str, float]:
    return {key: float(ticks[0]) / TICKS_PER_S for key, ticks in found.parts.items()}


def test_of_two_ranks_the_fast_one_waits_for_the_slow_one() -> None:
    """10 s of compute, 1 s of a sum, and 5 s: the second rank takes 11 s and 5.5 s. The first waits
    1 s at the sum and 0.5 s for the step's end."""
    ops = (compute("long", "", "a"), reduce("sum", "a", "dp", 1), compute("short", "a", "b"))
    found = played("dp=2", [1.0, 1.1], *ops, long=10.0, short=5.0)
    assert found.ticks[0] / TICKS_PER_S == pytest.approx(17.5)
    assert seconds_of(found) == pytest.approx({OWN: 16.75, "dp": 0.5, END: 0.25})


def test_a_slow_device_is_so_many_times_as_slow_under_jitter_too() -> None:
    """10 s of compute take 1.2 * 10 s on one rank and 1.2 * 1.5 * 10 s on the other, 1 s a sum."""
    ops = (compute("work", "", "a"), reduce("sum", "a", "dp", 1))
    found = played("dp=2", [1.0, 1.5], *ops, pool=np.full(8, 1.2), work=10.0)
    assert found.ticks[0] / TICKS_PER_S == pytest.approx(18 + 1)
    assert seconds_of(found) == pytest.approx({OWN: 16, "dp": 3, END: 0}, abs=1e-9)


def test_a_delay_is_waited_for_along_each_axis_by_the_ranks_that_it_reaches_there() -> None:
    """Rank 0 of 4 on two axes is 1 s late: one rank waits at the sum over x, and two at that over
    data."""
    ops = (
        compute("work", "", "a"),
        reduce("one", "a", "tp", 1),
        reduce("other", "a", "dp", 1),
    )
    found = played("tp=2,dp=2", [1.1, 1.0, 1.0, 1.0], *ops, work=10.0)
    assert found.ticks[0] / TICKS_PER_S == pytest.approx(13)
    parts = {OWN: 12.25, "tp": 0.25, "dp": 0.5, END: 0.0}
    assert seconds_of(found) == pytest.approx(parts, abs=1e-9)


def test_waiting_for_another_stream_counts_for_its_axes() -> None:
    """A sum of 1 s beside 0.4 s of compute, behind 10 s: 0.6 s of it are waited for by a rank that
    is on time. The other is 1 s late, and then 0.04 s later with its compute."""
    ops = (
        compute("work", "", "a"),
        reduce("sum", "a", "dp", 1, "dp"),
        compute("beside", "", "b"),
        compute("after", "a b", "c"),
    )
    found = played("dp=2", [1.0, 1.1], *ops, work=10.0, beside=0.4, after=1.0)
    assert found.ticks[0] / TICKS_PER_S == pytest.approx(11 + 1 + 1.1)
    waits = (12 - 10.4 + 12 - 11.44) / 2
    assert seconds_of(found) == pytest.approx(
        {OWN: 13.05 - waits, "dp": waits, END: 0.05}, abs=1e-9
    )


def test_an_op_is_kept_until_the_last_op_that_waits_for_it_and_no_longer() -> None:
    ops = (
        compute("work", "", "a"),
        reduce("sum", "a", "dp", 1, "dp"),
        compute("beside", "", "b"),
        compute("after", "a b", "c"),
    )
    (steps, *_) = stage_of("dp=2", *ops, work=10.0, beside=0.4, after=1.0)._stretches
    assert {op.name: step.reach for op, step in zip(ops, steps, strict=True)} == {
        "work": 1,
        "sum": 2,
        "beside": 0,
        "after": 0,
    }


def test_communication_has_no_noise() -> None:
    ops = (reduce("sum", "a", "dp", 1), reduce("again", "a", "dp", 1))
    assert played("dp=2", [2.0, 3.0], *ops).ticks[0] == 2 * TICKS_PER_S


def test_one_slow_device_of_a_pipeline_delays_the_stages_behind_it() -> None:
    """Two stages, two micro-batches: with one stage's only device twice as slow in all compute and
    links that take hardly any time, its slots alone fill the step but for one of the other's."""
    plan = plan_of("pp=2,schedule=gpipe", 8)
    costs, fabric = SmallCosts(launch_s=1e-9), SmallFabric(launch_s=1e-9, bytes_per_s=1e15)
    step = all_ranks(SMALL, plan, costs, fabric)
    plain = step.play(PLAIN)
    slow = step.play(Draw(0, (0, 1), np.array([[2.0, 1.0], [1.0, 2.0]])))
    assert (slow.ticks > 1.5 * plain.ticks).all()
    assert (slow.ticks < 2 * plain.ticks).all()
    assert (slow.parts["pp"] > plain.parts["pp"]).all()


def test_jitter_costs_what_the_larger_of_two_lognormal_numbers_exceeds_the_mean_by() -> None:
    """Two ranks that meet after every op: on average the later of two independent times, which for
    a small deviation s is s / sqrt(pi) above the mean."""
    count = 400
    ops = [compute("work", "", "a"), reduce("sum", "a", "dp", 1)]
    many = [replace(op, name=f"{op.name}{n}") for n in range(count) for op in ops]
    program = by_hand("dp=2", *many)
    whole = WholeProgram(program, columns_of(program.outline))
    costs = GivenSeconds(**{f"work{n}": 1.0 for n in range(count)})
    network = classes_of([program], SmallFabric(launch_s=1e-9))
    timed = _timed(whole, 1, Prices(costs, network))
    assert timed is not None
    noise = Noise(jitter=0.02)
    found = OneStage(timed).play(Draw(0, range(20), None, noise.pool(0, 2)))
    excess = found.ticks.mean() / TICKS_PER_S / count - 1
    assert excess == pytest.approx(0.02 / np.pi**0.5, rel=0.05)
