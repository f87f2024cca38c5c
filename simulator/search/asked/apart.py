"""Values of searched fields that a stack does not run beside what all plans of a problem have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.stacks.apart import not_run, together
from workload.errors import PlanCannotRunError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.search.problem import SearchProblem


def run(problem: SearchProblem, key: str, values: Sequence[Any]) -> list[Any]:
    """Those of a field's values that the stack runs; a PlanCannotRunError names the pair where it
    runs none."""
    overlap = *problem.fixed.get("overlap", ()), *problem.beside
    given = {**problem.fixed, "overlap": overlap}
    refused = {each: together(problem.stack.apart, {**given, key: each}.get) for each in values}
    left = [each for each in values if not refused[each]]
    if values and not left:
        by = f"the stack {problem.stack.name}"
        raise PlanCannotRunError(not_run(by, refused[values[0]]))
    return left
