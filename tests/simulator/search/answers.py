"""Answers of the search, compared with trying all plans."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.predict import Prediction
from simulator.search import judge_of
from simulator.search.baselines import exhaustive
from simulator.search.branch_and_bound import BranchAndBound
from simulator.search.core import core_spaces, tree_of
from simulator.search.objective import Objective
from simulator.search.problem import SearchProblem
from simulator.search.progress import Progress
from tests.simulator.search.drawn import MACHINES
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.session import in_session

BEHIND = 3  # the place of the plan that is known


def last(states: Iterator[Progress]) -> Progress:
    """The answer of a search."""
    return list(states)[-1]


@in_session
def proved(
    problem: SearchProblem,
    machine: Machine,
    objective: str = "time",
    capacity_bytes: int | None = None,
    placement: Placement | None = None,
    known: Prediction | None = None,
) -> BranchAndBound:
    """Branch and bound of the core space alone, to its end, where a plan is known or none."""
    problem = problem.on(machine)
    judge = judge_of(problem, machine, placement, capacity_bytes, objective)
    tree = tree_of(judge, core_spaces(problem, machine), machine, placement)
    list(tree.bound(known))
    list(tree.refine(known))
    assert tree.is_done
    return tree


def finds_the_best(problem: SearchProblem, machine: Machine, objective: str = "time") -> None:
    """Assert that branch and bound finds the best of all plans tried, from none or from one that
    is not far behind it, which leaves little open."""
    tried = last(exhaustive(problem, machine, objective=objective, top=BEHIND))
    goal = Objective(objective, machine, problem.devices)
    best = [each.plan for each in tried.found[:1]]
    for known in (None, *tried.found[1:][-1:]):
        tree = proved(problem, machine, objective, known=known)
        assert tree.plans == tried.considered
        assert tree.simulated <= tried.simulated
        assert ([] if tree.best is None else [tree.best.plan]) == best
        if tree.best is not None:
            assert goal.of(tree.best) == goal.of(tried.found[0])


def same_answer(problem: SearchProblem, name: str, objective: str = "time") -> None:
    """Assert the same on one of MACHINES."""
    finds_the_best(problem, MACHINES[name], objective)
