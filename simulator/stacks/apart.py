"""Values of a plan's keys that a stack does not run together.

`can.apart` of a stack's file has a table for each such set. Of a key that names several things, as
`overlap` and `recompute` do, a value is one of them, and a list is all of its values; `full` is
`full:N` too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workload.recomputation.parts import parts_of

Apart = Mapping[str, Any]


def together(apart: Sequence[Apart], field: Callable[[str], Any]) -> str:
    """What of a plan, whose fields `field` gives, is not run together, in a plan's words; "" where
    that is nothing.

    >>> apart = [{"overlap": "a2a", "recompute": "full"}]
    >>> together(apart, {"overlap": ("dp", "a2a"), "recompute": "full:2"}.get)
    'overlap=a2a with recompute=full'
    """
    for values in apart:
        wanted = {key: _listed(each) for key, each in values.items()}
        if all(set(each) <= _held(key, field(key)) for key, each in wanted.items()):
            return words(values)
    return ""


def words(values: Apart) -> str:
    """Such values as a plan has them.

    >>> words({"overlap": ["a2a", "shared"]})
    'overlap=a2a+shared'
    """
    return " with ".join(f"{key}={'+'.join(_listed(each))}" for key, each in values.items())


def not_run(by: str, both: str) -> str:
    """The sentence that refuses them, given in words who does not run them."""
    return f"{by} does not run {both}; leave one of them out"


def _listed(value: Any) -> list[str]:
    return list(value) if isinstance(value, list) else [value]


def _held(key: str, value: Any) -> set[Any]:
    """What a plan's field names."""
    if isinstance(value, tuple):
        return set(value)
    if key == "recompute" and value:
        return {value.partition(":")[0], *parts_of(value)}
    return {value}
