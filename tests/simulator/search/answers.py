"""An answer of the search, compared with trying all plans."""

from __future__ import annotations

from simulator.search import search
from simulator.search.baselines import exhaustive
from simulator.search.objective import Objective
from simulator.search.problem import SearchProblem
from topologies.machine import Machine


def finds_the_best(problem: SearchProblem, machine: Machine, objective: str = "time") -> None:
    """Asserts that the search proves the best plan, and that it is that of all plans tried."""
    *_, tried = exhaustive(problem, machine, objective=objective)
    *_, found = search(problem, machine, objective=objective)
    goal = Objective(objective, machine, problem.devices)
    assert found.is_optimal
    assert [*map(goal.of, found.found)] == [*map(goal.of, tried.found)]
