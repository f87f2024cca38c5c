"""Values of searched fields that a stack does not run, or not beside what all plans of a problem
have: by the same table as a prediction refuses a plan (`simulator/stacks/runs.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simulator.stacks.apart import not_run, together
from simulator.stacks.runs import fills_axes
from simulator.stacks.stack import Stack
from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.grid import AXES
from workload.plan_fields import DEFAULTS
from workload.sizes.arrays import Counts

ROW = ("zero", "recompute", "sp", "ep", "etp")
IN_ORDER = ("schedule", "vpp", "overlap", "order", "dispatcher", "recompute")  # of a row


def that_run(
    stack: Stack, gpt: GPT, fixed: Mapping[str, Any], grid: Sequence[int], table: Sequence[Any]
) -> Counts:
    """The rows of a space on a grid, in a `table` with the columns ROW, that the stack runs of a
    model with these fields fixed, whatever the order in which they run."""
    rows = np.array(table, dtype=np.int64)
    if not table:
        return rows
    sizes = dict(zip(AXES, grid, strict=True))
    columns = {**sizes, **dict(zip(ROW, rows.T, strict=True))}
    del columns["recompute"]  # a number of one of the problem's, of which no rule is
    others = {key: value for key, value in fixed.items() if key not in columns}
    plain = {key: value for key, value in DEFAULTS.items() if key not in IN_ORDER}
    known = {**gpt.flat(), **plain, **others, **columns}
    keep = np.ones(len(rows), dtype=bool)
    for rule in stack.runs.rules:
        if {*rule.keys} <= {*known}:
            keep &= np.asarray(rule.allows(known.__getitem__), dtype=bool)
    keep &= np.asarray(fills_axes(stack.can, known.__getitem__), dtype=bool)
    return rows[keep]


def run(stack: Stack, fixed: Mapping[str, Any], key: str, values: Sequence[Any]) -> list[Any]:
    """Keep the values of a field that the stack runs with these fields fixed; a PlanCannotRunError
    names the pair where it runs none."""
    given = {**fixed, "overlap": fixed.get("overlap", ())}
    refused = {each: together(stack.apart, {**given, key: each}.get) for each in values}
    left = [each for each in values if not refused[each]]
    if values and not left:
        by = f"the stack {stack.name}"
        raise PlanCannotRunError(not_run(by, refused[values[0]]))
    return left
