"""How plans of a search split experts: over which ranks, and which runs of neighbours that makes.

Bounded are plans that split an expert's matrices over tp as other weights, and those that hold
whole experts, different ones on all ranks of tp. Where `etp` is given, plans have it, and ranks of
tp may hold the same experts, or those of cp and dp parts of the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from simulator.search.problem import SearchProblem, divisors
from workload.lowering.divisibility import splits_experts
from workload.recipes.table import NO_RECIPE
from workload.sizes.arrays import Counts
from workload.splits.experts import FOLDED, fits, folded

TENSOR = "etp"
# The numbers that tell the parts of a grid's axes: of x and context how many neighbours make a run
# and how many such runs a longer one, of data those of a `Grid`.
RUNS = ("inner_tp", "middle_tp", "inner_cp", "middle_cp", "etp", "ep")


def splits_of(
    problem: SearchProblem, x: int, others: tuple[int, int], *, parallel: bool
) -> Iterator[tuple[int, int]]:
    """Every `expert` and `expert_tensor` of plans with so many ranks of x and, as `others`, of
    context and data, and with sequence parallelism if `parallel`."""
    gpt, recipe = problem.gpt, problem.fixed.get("recipe", NO_RECIPE)
    sizes = (x, *others)
    tensors = problem.choices(TENSOR, [0, 1] if parallel and x > 1 else [0])
    whole, shard = (
        divisors(gpt.moe.experts) if gpt.moe.experts else [1],
        problem.fixed.get("shard", 0),
    )
    for tensor in tensors:
        given = TENSOR in problem.fixed
        apart = tensor not in (0, x)
        if apart and (not gpt.moe.experts or (x > 1 and not parallel)):
            continue
        of_tensor = folded(tensor, *sizes) if apart else (x, 1, 1)
        if not splits_experts(gpt, recipe, "expert_ffn", tensor or x):
            continue
        if apart and not fits(tensor, sizes, of_tensor):
            continue
        left = [size // part for size, part in zip(sizes, of_tensor, strict=True)]
        for split in problem.choices("ep", whole):
            if whole[-1] % split or split < problem.least_expert:
                continue
            parts = folded(split, *left)
            if not fits(split, left, parts) or not (given or tensor == 0 or split % x == 0):
                continue
            if shard % (of_tensor[-1] * parts[-1]):
                continue
            yield split, tensor


def runs_of(columns: Mapping[str, Counts]) -> dict[str, Counts]:
    """For each shape the numbers of RUNS."""
    found = dict[str, Counts]()
    for axis, (tensor, experts, copies) in folds_of(columns).items():
        if axis == "dp":
            found |= {"etp": tensor, "ep": experts}
            continue
        found[f"inner_{axis}"] = np.where(tensor > 1, tensor, experts)
        found[f"middle_{axis}"] = np.where((tensor > 1) & (copies > 1), experts, 1)
    return found


def folds_of(columns: Mapping[str, Counts]) -> dict[str, tuple[Counts, Counts, Counts]]:
    """For each shape how x, context and data are split for experts (`Fold`)."""
    x, expert = columns["tp"], columns["ep"]
    apart = (columns[TENSOR] > 0) & (columns[TENSOR] != x)
    found, tensor = dict[str, tuple[Counts, Counts, Counts]](), np.where(apart, columns[TENSOR], x)
    for axis in FOLDED:
        size = columns[axis]
        of_tensor = np.where(tensor % size == 0, size, tensor)
        tensor, left = tensor // of_tensor, size // of_tensor
        of_experts = np.where(expert % left == 0, left, expert)
        expert = expert // of_experts
        found[axis] = of_tensor, of_experts, left // of_experts
    return found
