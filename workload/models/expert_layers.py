"""Which layers have experts, from a mark for each of them."""

from __future__ import annotations

from collections.abc import Sequence


def layers_of(marks: Sequence[int | bool]) -> tuple[int, int] | None:
    """How many layers stand before the first so many-th with experts, and every how manieth has
    them, as a model's `dense_layers` and `expert_every`; None where they are at no equal distance.

    >>> layers_of([0, 0, 1, 0, 1]), layers_of([1, 1, 0])
    ((1, 2), None)
    """
    those = [number for number, mark in enumerate(marks) if mark]
    every = those[1] - those[0] if len(those) > 1 else 1
    before = those[0] - every + 1 if those else -1
    if before < 0 or those != list(range(those[0], len(marks), every)):
        return None
    return before, every
