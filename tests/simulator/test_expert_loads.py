"""Steps whose experts are used unevenly, against steps of even use and against themselves whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.predict import Prediction, predict
from tests.workload.test_experts import TWO
from topologies.machine_files import load_machine
from workload.expert_loads.histogram import Histogram, RoutedGPT, routed
from workload.gpt import GPT
from workload.lowering import lower
from workload.lowering.few_layers import few_layers
from workload.plan import Plan
from workload.plan_text import parse_plan

H100 = load_machine("dgx-h100")
WIDE = TWO.changed(hidden=512, expert_ffn=1024, sequence=512)
UNEVEN, OTHER = (4, 3, 2, 2, 2, 1, 1, 1), (1, 2, 3, 1, 4, 2, 1, 2)
EVEN = (2,) * 8
PLANS = ("dp=4,ep=4,zero=1", "dp=2,ep=2,pp=2", "tp=2,dp=2,ep=4,etp=1,sp=true")


def plan_of(text: str) -> Plan:
    batch = 4 * parse_plan(f"{text},batch=64").dp
    return parse_plan(f"{text},batch={batch},mbs=1")


def predicted(gpt: GPT, text: str) -> Prediction:
    return predict(gpt, plan_of(text), H100)


def with_counts(*layers: tuple[int, ...], gpt: GPT = WIDE) -> RoutedGPT:
    return routed(gpt, Histogram(layers))


@pytest.mark.parametrize("plan", PLANS)
def test_equal_counts_take_exactly_the_balanced_step(plan: str) -> None:
    even, same = predicted(WIDE, plan), predicted(with_counts(EVEN, EVEN), plan)
    assert same.load is not None
    assert same.load.most_over_mean == 1.0
    assert same.load.balanced_step_s == same.step_s
    assert replace(same, gpt=WIDE, load=None) == even


@pytest.mark.parametrize("plan", PLANS)
def test_the_step_waits_for_the_busiest_rank_and_has_the_models_flops(plan: str) -> None:
    even, uneven = predicted(WIDE, plan), predicted(with_counts(UNEVEN, EVEN), plan)
    own = uneven.load
    assert own is not None
    assert own.layer == 0
    assert own.most_over_mean == {4: 7 / 4, 2: 11 / 8}[uneven.plan.ep]
    assert own.mean_over_mean == (own.most_over_mean + 1) / 2
    assert own.balanced_step_s == even.step_s < uneven.step_s
    assert own.balanced_peak_bytes == even.memory.peak_bytes < uneven.memory.peak_bytes
    total = uneven.model_flops_per_s_per_device * uneven.step_s
    assert total == pytest.approx(even.model_flops_per_s_per_device * even.step_s)
    assert uneven.as_dict()["routing"]["most_over_mean"] == own.most_over_mean
    assert "routing" not in even.as_dict()


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        pytest.param((UNEVEN,) * 16, "dp=4,ep=4", marks=pytest.mark.slow),
        pytest.param((UNEVEN,) * 12 + (OTHER,) * 4, "dp=4,ep=4", marks=pytest.mark.slow),
        pytest.param((UNEVEN, OTHER) * 8, "dp=4,ep=4", marks=pytest.mark.slow),
        ((UNEVEN,) * 13 + (EVEN, OTHER, EVEN), "dp=2,ep=2,recompute=full"),
        ((UNEVEN,) * 8 + (OTHER,) * 8, "dp=2,ep=2,pp=2"),
    ],
)
def test_layers_that_differ_in_their_counts_alone_are_told_apart(
    counts: tuple[tuple[int, ...], ...], text: str
) -> None:
    """A step of few layers and micro-batches is that of all, to the tick and to the byte; of two
    stages, that of their ops."""
    gpt, plan = with_counts(*counts, gpt=replace(WIDE, layers=16)), plan_of(text)
    folded, whole = predict(gpt, plan, H100), predict(gpt, plan, H100, fold=False, timeline=True)
    assert folded.step_s == whole.step_s
    assert folded.memory == whole.memory
    assert folded.breakdown_s == whole.breakdown_s
    assert whole.timeline is not None
    assert whole.timeline.step_s == pytest.approx(folded.step_s, rel=1e-12)


def test_of_layers_with_equal_counts_a_few_stand_for_all() -> None:
    """16 of them in front of two others: two are lowered, and both of the others."""
    gpt = with_counts(*[UNEVEN] * 16, OTHER, EVEN, gpt=replace(WIDE, layers=18))
    few, *_ = few_layers(gpt, parse_plan("dp=4,ep=4,batch=16"))
    assert list(few.parts[0]) == [0, 15, 16, 17]
    assert [run.missing for run in few.runs] == [tuple(range(1, 15))]


@pytest.mark.parametrize("plan", ["dp=4,ep=4", "dp=4,ep=4,pp=2"])
def test_the_peak_is_that_of_the_fullest_rank(plan: str) -> None:
    """Against programs of each rank by itself, in which no other has more in any layer."""
    layers = (UNEVEN, OTHER, EVEN, (1, 1, 1, 1, 2, 2, 4, 4))
    four = replace(WIDE, layers=4)
    found = predicted(with_counts(*layers, gpt=four), plan).memory.peak_bytes
    alone = [
        max(_peak_of_rank(layers, rank, four, plan, stage) for stage in range(1 + ("pp" in plan)))
        for rank in range(4)
    ]
    assert found == max(alone)
    assert found < predicted(with_counts(*[UNEVEN] * 4, gpt=four), plan).memory.peak_bytes


def test_the_fullest_rank_may_have_fewer_rows_than_another_in_all_layers_together() -> None:
    """The first rank has 26 of 64, and the second, with 18, has 12 of 16 in one layer: with full
    recompute the rows of one layer at a time are in use."""
    layers = ((1, 1, 6, 6, 1, 1, 0, 0), *[(4, 4, 1, 1, 1, 1, 2, 2)] * 3)
    plan, four = "dp=4,ep=4,recompute=full", replace(WIDE, layers=4)
    alone = [_peak_of_rank(layers, rank, four, plan, 0) for rank in range(4)]
    assert alone[1] > max(alone[0], *alone[2:])
    assert predicted(with_counts(*layers, gpt=four), plan).memory.peak_bytes == alone[1]


def _peak_of_rank(
    layers: tuple[tuple[int, ...], ...], rank: int, gpt: GPT, plan: str, stage: int
) -> int:
    """A rank's peak by its own rows: those of a buffer that data decides on, put in by hand."""
    program = lower(gpt, parse_plan(f"{plan},batch=16,mbs=1"), stage)
    sizes = []
    for buffer in program.buffers.values():
        share = 1.0
        if buffer.rows_of:
            counts = layers[int(buffer.rows_of.split(".l")[1].split(".")[0])]
            share = 4 * sum(counts[2 * rank : 2 * rank + 2]) / sum(counts)
        sizes.append(round(buffer.nbytes * share))
    return replace(program, known_nbytes=sizes).peak.total_bytes


@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.integers(40, 100), min_size=8, max_size=8),
    st.integers(0, 7),
    st.integers(1, 40),
    st.sampled_from(PLANS),
)
def test_more_skew_never_takes_less_time(
    counts: list[int], giving: int, moved: int, plan: str
) -> None:
    """More of it: choices of an expert elsewhere become those of one on the busiest rank."""
    each = 8 // parse_plan(f"{plan},batch=8").ep
    loads = [sum(counts[first : first + each]) for first in range(0, 8, each)]
    busiest = loads.index(max(loads))
    further = [*counts]
    further[giving] -= moved
    further[busiest * each] += moved
    every = (EVEN, tuple(counts), tuple(further))
    even, before, after = (predicted(with_counts(own, EVEN), plan) for own in every)
    assert even.step_s <= before.step_s <= after.step_s
    assert even.memory.peak_bytes <= before.memory.peak_bytes <= after.memory.peak_bytes
