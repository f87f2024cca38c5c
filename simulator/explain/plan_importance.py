"""Which fields of a plan decide how long a step takes: their Shapley values over a space of plans.

Let y be the logarithm of the step's time. A set S of fields is worth the variance of y that S
explains: Var(y) less the mean variance of y among plans that agree in S. A field's Shapley value
is what it adds to the fields before it, averaged over all orders of the fields; the values sum to
Var(y), so that each is a share of it. Fields of a plan depend on each other, since the sizes of
its axes multiply to the number of devices; for such fields these shares still sum to one.

Source: Owen, Sobol' indices and Shapley value (SIAM/ASA J. Uncertainty Quantification 2, 2014)
and Song, Nelson, Staum, Shapley effects for global sensitivity analysis (the same journal 4,
2016), who show the last. With n plans drawn of N, in G groups that agree in S, the variance
within groups is their sum of squares over n - (1 - n/N) G: the plain variance of the whole
population, and the unbiased pooled one of a small sample. Where nothing is left to divide by, S
tells all plans apart. A share below zero is the sample's error.

Not modelled: plans that do not fit into memory are left out; a search that tries them loses time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from simulator.predict import Prediction, predict
from simulator.search.orders import overlaps
from simulator.search.problem import SearchProblem
from simulator.search.space import Order, spaces_of
from simulator.stacks.stack import EXECUTOR, Stack
from topologies.errors import MachineError
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.records import record
from topologies.session import in_session
from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.plan import Plan
from workload.sizes.arrays import Indices
from workload.splits.plan_values import CHOICES

Values = NDArray[np.float64]

FIELDS = (
    "tp", "y", "z", "cp", "context_kind", "pp", "mbs", "zero", "recompute",
    "sp", "ep", "etp", "dispatcher",
)  # fmt: skip
KEPT = (
    "overlap", "order", "attention", "gradients", "precision", "recipe", "offload", "optimizer",
    "fp8_dispatch", "moments", "master", "fp8_swiglu_input",
    "loss_chunks",
)  # fmt: skip
PLANS = 150  # that fit and are simulated
TRIED = 3 * PLANS
FEWEST = 8  # plans: with fewer no share is worth a figure


@record
class PlanImportance:
    """The share of each field in the variance of log step time, the largest first, over so many
    `plans` of a `space`; `unfit` of those that were drawn do not fit into memory."""

    shares: Mapping[str, float]
    plans: int
    unfit: int
    space: int
    fastest: Plan
    spread: float  # the longest step over the shortest
    stack: Stack = EXECUTOR

    @property
    def fastest_text(self) -> str:
        """The fastest plan as the stack reads it."""
        return self.stack.text(self.fastest)

    def as_dict(self) -> dict[str, object]:
        """As it stands in JSON."""
        return {
            "shares": dict(self.shares),
            "plans": self.plans,
            "do_not_fit": self.unfit,
            "space": self.space,
            "fastest_plan_string": self.fastest_text,
            "longest_over_shortest": self.spread,
        }


@in_session
def plan_importance(
    gpt: GPT,
    plan: Plan,
    machine: Machine,
    placement: Placement,
    stack: Stack,
    progress: Callable[[str], None] = lambda _: None,
) -> PlanImportance:
    """The importance of the fields of plans for a plan's model, devices and batch.

    The space has every legal grid, micro-batch, stage of ZeRO, recomputation, sequence
    parallelism, split of experts and dispatcher that the stack runs, in the schedule 1f1b, and
    splits of sequences where the plan has one; other fields are those of the plan. Where
    it has more plans than are simulated, they are drawn, each as likely, with a fixed seed.
    """
    _check(plan, stack)
    fixed = {key: plan.value(key) for key in KEPT} | {"schedule": "1f1b", "vpp": 1}
    fixed |= {"cp": 1} if plan.cp == 1 else {}
    several = {"context_kind": CHOICES["context_kind"]} if plan.cp > 1 else {}
    problem = SearchProblem(
        gpt, plan.grid.ranks, plan.batch, fixed, stack=stack, several=several
    ).on(machine)
    plans = list(_plans(problem))
    found, tried = _simulated(problem, plans, machine, placement, progress)
    if len(found) < FEWEST:
        raise PlanCannotRunError(
            f"{len(found)} of {tried} plans drawn fit into a device's memory; the importance of "
            f"their fields needs {FEWEST}"
        )
    rows = [tuple(each.plan.value(field) for field in FIELDS) for each in found]
    logs = [math.log(each.step_s) for each in found]
    shares = shapley_shares(FIELDS, rows, logs, drawn=tried / len(plans))
    fastest = min(found, key=lambda each: each.step_s)
    spread = max(each.step_s for each in found) / fastest.step_s
    return PlanImportance(
        dict(sorted(shares.items(), key=lambda item: -item[1])),
        len(found),
        tried - len(found),
        len(plans),
        fastest.plan,
        spread,
        stack,
    )


def _simulated(
    problem: SearchProblem,
    plans: Sequence[Plan],
    machine: Machine,
    placement: Placement,
    progress: Callable[[str], None],
) -> tuple[list[Prediction], int]:
    """The predictions of plans drawn that fit, and how many were drawn."""
    found: list[Prediction] = []
    drawn = np.random.default_rng(0).permutation(len(plans))[:TRIED].tolist()
    for tried, number in enumerate(drawn):
        if len(found) == PLANS:
            return found, tried
        progress(f"{len(found)} of {min(PLANS, len(plans))} plans that fit")
        gpt, stack = problem.stack.model(problem.gpt, plans[number].tp), problem.stack
        try:
            one = predict(gpt, plans[number], machine, placement=placement, stack=stack)
        except MachineError:
            continue
        found += [one] if one.memory.is_sure else []
    return found, len(drawn)


def _check(plan: Plan, stack: Stack) -> None:
    uneven = plan.pipeline.stage_layers or plan.pipeline.ends_as_layers
    for name, used in (("stage_layers", uneven), ("shard", plan.shard)):
        if used:
            raise PlanCannotRunError(f"the importance of a plan's fields is not known with {name}")


def _plans(problem: SearchProblem) -> Iterator[Plan]:
    for space in spaces_of(problem):
        for at in range(len(space)):
            switches = overlaps(space.problem, space.shape(at))[0]
            for dispatcher in space.dispatchers(at):
                yield space.plan(
                    at, Order("1f1b", 1, switches, space.rank_orders(at)[0], dispatcher)
                )


def shapley_shares(
    names: Sequence[str],
    rows: Sequence[Sequence[Hashable]],
    values: Sequence[float],
    *,
    drawn: float = 1.0,
) -> dict[str, float]:
    """Each name's share of the variance of the values, by its Shapley value, of rows that are this
    share of a population; names that have one value in all rows are left out.

    >>> rows = [(a, b, 0) for a in (0, 1) for b in (0, 1)]
    >>> shapley_shares(["a", "b", "c"], rows, [0.0, 1.0, 3.0, 4.0])  # 3 a + b
    {'a': 0.9, 'b': 0.1}
    """
    vary = [at for at in range(len(names)) if len({row[at] for row in rows}) > 1]
    columns = {at: _numbered([row[at] for row in rows]) for at in vary}
    logs = np.array(values) - np.mean(values)
    worth = {
        some: _explained([columns[at] for at in some], logs, drawn)
        for count in range(len(vary) + 1)
        for some in combinations(vary, count)
    }
    total = worth[tuple(vary)] or 1.0
    return {names[at]: round(_shapley(at, vary, worth) / total, 12) for at in vary}


def _shapley(at: int, every: Sequence[int], worth: Mapping[tuple[int, ...], float]) -> float:
    """What one adds to each set of the others, weighted by the orders in which these come first."""
    others, n = [other for other in every if other != at], len(every)
    value = 0.0
    for count in range(n):
        weight = 1 / (n * math.comb(n - 1, count))
        for some in combinations(others, count):
            value += weight * (worth[tuple(sorted((*some, at)))] - worth[some])
    return value


def _numbered(values: Sequence[Hashable]) -> Indices:
    """For each value the number of the first like it."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.array([numbers[value] for value in values], dtype=np.int64)


def _explained(columns: Sequence[Indices], values: Values, drawn: float) -> float:
    """The variance of the values, whose mean is 0, less that within groups that agree in all
    columns."""
    return _within([], values, drawn) - _within(columns, values, drawn)


def _within(columns: Sequence[Indices], values: Values, drawn: float) -> float:
    group = np.zeros(len(values), dtype=np.int64)
    for column in columns:
        _, group = np.unique(group * (column.max() + 1) + column, return_inverse=True)
    counts = np.bincount(group)
    sums = np.bincount(group, weights=values)
    squares = float(values @ values - (sums * sums / counts).sum())
    freedom = len(values) - (1 - drawn) * len(counts)
    return squares / freedom if freedom else 0.0
