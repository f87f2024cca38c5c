"""A property that is checked on few examples in every run, and on many in the slow one."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.examples import few_and_many

USUAL = settings(deadline=None, database=None)
SEEN: list[tuple[str, int]] = []


@few_and_many(2, 50, USUAL, {"number": st.integers(100, 10**6)}, number=st.integers(0, 99))
def noted(name: str, number: int) -> None:
    SEEN.append((name, number))


@few_and_many(2, 50, USUAL, number=st.integers(5, 9))
def below_five(number: int) -> None:
    assert number < 5


def test_as_many_examples_are_drawn_as_the_count_says_and_slow_ones_from_further() -> None:
    SEEN.clear()
    noted(2, name="few")
    noted(50, name="many")
    few, many = ([number for name, number in SEEN if name == which] for which in ("few", "many"))
    assert len(few) == 2
    assert max(few) < 100
    assert len(many) == 50
    assert min(many) >= 100


@pytest.mark.parametrize("count", [2, 50])
def test_a_property_that_fails_fails_the_test(count: int) -> None:
    with pytest.raises(AssertionError):
        below_five(count)
