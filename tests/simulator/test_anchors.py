"""Measured steps scale predictions near them, the less the farther away they are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.predict import Prediction, predict
from simulator.uncertainty.anchors import (
    DENSE,
    SAME_PLAN,
    Anchor,
    Bin,
    Distance,
    Place,
    QuestionAnchors,
    anchoring_of,
    distance,
    incomparable,
    span_at,
)
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.plan_text import parse_plan

HERE = Place(
    stack="megatron-core",
    stack_family="megatron",
    device="H100",
    experts=False,
    devices=64,
    parameters=8 * 10**9,
    sequence=4096,
    precision="bf16 none",
    degrees=(2, 1, 1, 1, 1, 1),
    words=("none", "1f1b", "1", "1", "1", "True", "()", "fp32", "adamw", "none", "plain"),
)
BINS = (
    Bin("dense", 1.0, -0.1, 0.05, 40, 4),
    Bin("dense", 3.0, -0.3, 0.25, 20, 2),
    Bin("experts", 1.0, -0.5, 0.5, 9, 1),
)


def measured(place: Place, factor: float, name: str = "run") -> Anchor:
    """A step of 10 s predicted that took so many times as long."""
    return Anchor(name, place, 10.0 * factor, 10.0)


def test_an_anchor_of_the_same_question_and_plan_gives_its_measured_step() -> None:
    assert anchoring_of(HERE, [measured(HERE, 1.3)], BINS).factor == pytest.approx(1.3)


def test_each_doubling_of_the_question_takes_a_fifth_of_the_weight() -> None:
    """64 devices and 256 are two doublings apart: the factor counts to the power of 3/5."""
    far = HERE._replace(devices=256)
    found = anchoring_of(far, [measured(HERE, 1.3)], BINS)
    assert found.factor == pytest.approx(1.3 ** (3 / 5))
    assert found.used[0].distance.question == 2


def test_an_anchor_five_doublings_away_says_nothing_and_the_answer_says_so() -> None:
    far = HERE._replace(devices=64 * 16, parameters=16 * 10**9)
    found = anchoring_of(far, [measured(HERE, 1.3, "mine")], BINS)
    assert (found.factor, found.used) == (1.0, ())
    assert "mine" in found.unused


def test_another_plan_leaves_the_weight_and_widens_the_range() -> None:
    """Plans of one question get the same factor, so that their order stays; tp=8 is two doublings
    from tp=2, where the ends of the range lie on the line between those of 1 and 3 doublings."""
    other = HERE._replace(degrees=(8, 1, 1, 1, 1, 1))
    found = anchoring_of(other, [measured(HERE, 1.3)], BINS)
    assert found.factor == pytest.approx(1.3)
    assert math.log(found.span.low) == pytest.approx(-0.2)
    assert math.log(found.span.high) == pytest.approx(0.15)


def test_of_several_anchors_the_three_nearest_count_and_the_nearer_the_more() -> None:
    """At 64, 128 and 32 devices the weights are 1, 4/5 and 4/5, and a doubling away halves them;
    the fourth lies farther."""
    anchors = [
        measured(HERE._replace(devices=128), 1.2, "more"),
        measured(HERE._replace(devices=32), 0.9, "fewer"),
        measured(HERE, 1.1, "same"),
        measured(HERE._replace(devices=256), 9.0, "far"),
    ]
    found = anchoring_of(HERE, anchors, BINS)
    mean = (math.log(1.1) + 0.4 * math.log(1.2) + 0.4 * math.log(0.9)) / 1.8
    assert found.factor == pytest.approx(math.exp(mean))
    assert [each.anchor.name for each in found.used] == ["same", "fewer", "more"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": "A100"}, "A100"),
        ({"stack": "torchtitan", "stack_family": "torchtitan"}, "torchtitan"),
        ({"experts": True}, "experts"),
    ],
)
def test_other_devices_stacks_and_kinds_of_models_anchor_nothing(
    change: dict[str, object], said: str
) -> None:
    other = HERE._replace(**change)  # type: ignore[arg-type]
    assert said in incomparable(other, HERE)
    assert anchoring_of(HERE, [measured(other, 1.5)], BINS).factor == 1.0


def test_every_difference_is_said_with_both_values() -> None:
    other = HERE._replace(sequence=8192, degrees=(4, 1, 1, 1, 1, 1), precision="bf16 mxfp8")
    found = distance(HERE, other)
    assert (found.question, found.plan) == (2.0, 1.0)
    for words in ("4,096", "8,192", "tp=2", "4", "mxfp8"):
        assert any(words in each for each in found.differs)


def test_parameters_that_a_plan_pads_make_no_other_question() -> None:
    padded = HERE._replace(parameters=HERE.parameters + 10**7)
    assert padded.question == HERE.question
    assert distance(HERE, padded).differs == ()


def test_all_plans_of_a_question_share_what_anchors_make_of_the_first() -> None:
    """The second plan alone would take the other anchor's factor."""
    other = HERE._replace(degrees=(64, 1, 1, 1, 1, 1))
    near = [measured(HERE, 1.1, f"near {number}") for number in range(3)]
    anchors = QuestionAnchors([*near, *(measured(other, 2.0, f"tp {n}") for n in range(3))])
    first, second = anchors.of(HERE), anchors.of(other)
    assert first is second
    assert first is not None
    assert first.factor == pytest.approx(1.1)
    assert QuestionAnchors(()).of(HERE) is None


@given(
    st.floats(0.0, 8.0, allow_nan=False),
    st.floats(0.0, 8.0, allow_nan=False),
)
def test_the_range_never_narrows_with_distance(one: float, other: float) -> None:
    near, far = sorted((one, other))
    spans = [span_at(BINS, Distance(each, 0, ()), experts=False) for each in (near, far)]
    assert spans[1].low <= spans[0].low <= 1 <= spans[0].high <= spans[1].high


def test_an_anchor_with_the_same_plan_gives_the_narrower_range_of_such_pairs() -> None:
    bins = (*BINS, Bin(DENSE + SAME_PLAN, 1.0, -0.02, 0.03, 30, 5))
    far = Distance(1.0, 0.0, ()), Distance(0.0, 1.0, ())
    same, other = (span_at(bins, each, experts=False) for each in far)
    assert (same.high, other.high) == pytest.approx((math.exp(0.03), math.exp(0.05)))
    assert SAME_PLAN in same.words
    assert SAME_PLAN not in other.words


def test_models_with_experts_have_ranges_of_their_own() -> None:
    assert span_at(BINS, Distance(1.0, 0, ()), experts=True).high == pytest.approx(math.exp(0.5))


@pytest.fixture(scope="module")
def step() -> Prediction:
    plan = parse_plan("z=4,dp=rest", devices=8, batch=16)
    return predict(find_model("tiny-2m"), plan, load_machine("perlmutter"))


def test_all_figures_of_an_anchored_step_agree(step: Prediction) -> None:
    """A step that takes 1.5 times as long has 2/3 of the FLOP/s and costs 1.5 times as much."""
    anchor = Anchor("run", step.place, 1.5 * step.step_s, step.step_s)
    found = step.anchored([anchor])
    assert found.step_s == pytest.approx(1.5 * step.step_s)
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_s)
    assert found.mfu == pytest.approx(step.mfu / 1.5)
    assert found.hfu == pytest.approx(step.hfu / 1.5)
    assert found.tokens_per_s == pytest.approx(step.tokens_per_s / 1.5)
    assert found.cost.node_s_per_step == pytest.approx(1.5 * step.cost.node_s_per_step)
    assert found.cost.power_w == pytest.approx(step.cost.power_w)
    assert found.memory == step.memory
    assert found.range.low_s <= found.step_s <= found.range.high_s
    assert found.as_dict()["anchor"]["used"][0]["anchor"] == "run"


def test_a_step_without_a_near_anchor_keeps_its_own_range(step: Prediction) -> None:
    far = Anchor("run", replace_device(step.place), 1.0, 2.0)
    found = step.anchored([far])
    assert (found.step_s, found.range) == (step.step_s, step.range)
    assert found.as_dict()["anchor"]["unused"]


def replace_device(place: Place) -> Place:
    return place._replace(device="B200")


def test_a_place_tells_a_plan_from_another(step: Prediction) -> None:
    other = replace(step, plan=replace(step.plan, mbs=1))
    assert step.place.question == other.place.question
    assert distance(step.place, other.place).plan == 1.0
