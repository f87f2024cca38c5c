"""Lanes: one lowering for many plans is the very program of each."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from workload.gpt import find_model
from workload.lowering import lower
from workload.plan import Plan
from workload.sizes.vectorized import (
    Lanes,
    LaneSteps,
    SharedSteps,
    UnequalLanesError,
    inputs_of,
    lanes,
)

TINY = replace(find_model("gpt-5b"), layers=2)
SIZES = ("tp", "y", "z", "dp", "mbs")


def of(*numbers: int) -> Any:
    return lanes(np.array(numbers))


def lane(value: Any, at: int) -> Any:
    return int(value.values[at]) if isinstance(value, Lanes) else value


def test_lanes_calculate_as_ints_do() -> None:
    a, b = of(7, 9), of(2, 5)
    for number in (a + b, a - b, a * b, a // b, a % b, -a, 3 - a, 40 // a, 20 % a, 2 * a, 1 + a):
        assert isinstance(number, Lanes)
    assert (a // b).values.tolist() == [3, 1]
    assert (20 % a).values.tolist() == [6, 2]
    assert [part.values.tolist() for part in divmod(a, b)] == [[3, 1], [1, 4]]


def test_lanes_that_are_all_the_same_are_an_int() -> None:
    assert of(4, 4) == 4
    assert type(of(4, 8) // of(2, 4)) is int


def test_plans_that_differ_in_an_answer_are_told_apart() -> None:
    assert of(4, 8) > 3
    assert not of(4, 8) < 4
    with pytest.raises(UnequalLanesError) as found:
        bool(of(4, 8) > 4)
    assert found.value.aside.tolist() == [False, True]
    with pytest.raises(UnequalLanesError):
        bool(of(0, 1))


def test_steps_calculate_as_lanes_do() -> None:
    steps = LaneSteps()
    a, b = (steps.input(np.array(numbers)) for numbers in ([7, 9], [2, 5]))
    plain_a, plain_b = of(7, 9), of(2, 5)
    pairs = [
        (a - 3, plain_a - 3),
        (3 - a, 3 - plain_a),
        (a % b, plain_a % plain_b),
        (b % a, plain_b % plain_a),
        (a * b - b, plain_a * plain_b - plain_b),
    ]
    for mine, plain in pairs:
        assert mine.values.tolist() == plain.values.tolist()
    assert a > b
    assert not b > a
    with pytest.raises(UnequalLanesError):
        bool(a > 8)


def test_steps_are_taken_once_and_say_what_they_follow_from() -> None:
    steps = LaneSteps()
    a, b = (steps.input(np.array(numbers)) for numbers in ([7, 9], [2, 5]))
    assert 2 * a * b is 2 * a * b
    assert a + b - b is a
    assert [inputs_of(each) for each in (3, a * 2, b * 3, a * b, of(1, 2))] == [0, 1, 2, 3, -1]
    assert inputs_of(4, a, b * 3) == 3
    product = a * b
    steps.close()
    assert (product + a).values.tolist() == [21, 54]


MORE: tuple[dict[str, Any], ...] = (
    {},
    {"recompute": "full", "reshard": False},
    {"schedule": "zb-h1"},
)


@pytest.mark.parametrize(
    ("zero", "more"),
    [
        pytest.param(zero, more, marks=() if (zero + at) % 3 == 1 else pytest.mark.slow)
        for zero in range(4)
        for at, more in enumerate(MORE)
    ],
)
def test_many_plans_lowered_at_once_have_each_its_own_program(
    zero: int, more: dict[str, Any]
) -> None:
    columns = np.array(list(product((2, 4), (2, 8), (2, 16), (4, 8), (1, 2)))).T
    sizes = dict(zip(SIZES, columns, strict=True))
    steps = LaneSteps()
    fields = {key: steps.input(column) for key, column in sizes.items()}
    batch = 2 * fields["z"] * fields["dp"] * fields["mbs"]
    together = lower(TINY, Plan.of(**fields, **more, zero=zero, batch=batch))
    for at in range(0, columns.shape[1], 5):
        own: dict[str, Any] = {key: int(column[at]) for key, column in sizes.items()}
        batch = 2 * own["z"] * own["dp"] * own["mbs"]
        alone = lower(TINY, Plan.of(**own, **more, zero=zero, batch=batch))
        assert [op.name for op in together.ops] == [op.name for op in alone.ops]
        for many, one in zip(together.ops, alone.ops, strict=True):
            for key in ("kind", "reads", "writes", "stream", "axes", "block"):
                assert getattr(many, key) == getattr(one, key)
            assert (lane(many.nbytes, at), lane(many.flops, at)) == (one.nbytes, one.flops)
            assert lane(many.replicas, at) == one.replicas
        for name, buffer in alone.buffers.items():
            assert lane(together.buffers[name].nbytes, at) == buffer.nbytes
    for op in together.ops:
        holds_what_it_follows_from(op.nbytes, columns)
        holds_what_it_follows_from(op.flops, columns)


def holds_what_it_follows_from(number: Any, columns: Any) -> None:
    """Plans with the same inputs of a number have the same number."""
    if isinstance(number, Lanes):
        own = [column for at, column in enumerate(columns) if number.inputs >> at & 1]
        pairs = set(zip(*map(list, own), number.values.tolist(), strict=True))
        assert len(pairs) == len({pair[:-1] for pair in pairs})


def test_steps_are_shared_by_the_same_inputs_alone() -> None:
    shared = SharedSteps()
    one, same, other = (
        shared.inputs([np.array(numbers), np.array([3, 5])]) for numbers in ([2, 4], [2, 4], [2, 8])
    )
    assert one is same
    assert (2 * other[0] * other[1]).values.tolist() == [12, 80]
    assert one[0].steps is None, "steps from other inputs are forgotten"
