"""Which examples and parameters of a test every run has, and which the slow one alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

Test = Callable[..., None]
HOUR_S = 3600


def few_and_many(
    few: int,
    many: int,
    how: settings,
    slow: Mapping[str, st.SearchStrategy[Any]] | None = None,
    **drawn: st.SearchStrategy[Any],
) -> Callable[[Test], Test]:
    """A test of so many examples, and a slow one of `many`, which draws as `slow` says instead.

    Parameters that are not drawn are those of other decorators.
    """
    counts = [few, pytest.param(many, marks=[pytest.mark.slow, pytest.mark.timeout(HOUR_S)])]

    def decorated(test: Test) -> Test:
        def checked(examples: int, **others: Any) -> None:
            strategies = {**drawn, **(slow or {})} if examples == many else drawn
            settings(how, max_examples=examples)(given(**strategies)(test))(**others)

        named = inspect.Parameter("examples", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        own = inspect.signature(test).parameters.values()
        signature = inspect.Signature([named, *(each for each in own if each.name not in drawn)])
        checked.__signature__ = signature  # type: ignore[attr-defined]
        checked.__name__, checked.__doc__ = test.__name__, test.__doc__
        checked.__module__ = test.__module__
        counted: Test = pytest.mark.parametrize("examples", counts)(checked)
        return counted

    return decorated


def one_in(count: int, values: Iterable[Any]) -> list[Any]:
    """All of these as parameters; those but the first of each so many are slow tests."""
    return [
        each if at % count == 0 else parameter
        for at, each in enumerate(values)
        for parameter in slow(each)
    ]


def slow(*values: Any) -> list[Any]:
    """These as parameters of slow tests; a tuple is one value for each argument."""
    return [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.slow)
        for each in values
    ]
