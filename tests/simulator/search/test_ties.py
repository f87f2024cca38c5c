"""Of plans that are equally good the answer is the one with the shortest text, by whatever way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.costs.analytic import compute_costs
from simulator.ranks.fabric import MachineFabric
from simulator.search import branch_and_bound, search
from simulator.search.baselines import exhaustive
from simulator.search.branch_and_bound import BranchAndBound
from simulator.search.objective import Objective
from simulator.search.problem import SearchProblem
from simulator.search.progress import Tally
from simulator.search.root_nodes import Machinery
from simulator.search.space import space_of
from simulator.search.warm_start import FEW
from simulator.search.workers import Simulated, WorkerSetup
from tests.simulator.search.drawn import MACHINES
from workload.gpt import GPT
from workload.grid import USUAL
from workload.plan import Plan

SMALL = GPT(name="small", layers=4, hidden=512, heads=4, ffn=2048, sequence=512, vocab=1000)
ORDERS = SearchProblem(
    SMALL, 8, 8, {"tp": 2, "y": 2, "z": 2, "mbs": 1, "recompute": "none", "overlap": ()}
)


@pytest.mark.parametrize("top", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_search_and_trying_all_agree_on_equal_plans(top: int) -> None:
    *_, found = search(ORDERS, MACHINES["dgx-a100"], top=top)
    *_, every = exhaustive(ORDERS, MACHINES["dgx-a100"], top=10**6)
    assert [each.plan for each in found.found] == [each.plan for each in every.found[:top]]
    best = [each for each in every.found if each.step_s == found.found[0].step_s]
    assert len(best) > 1
    assert found.found[0].plan == min((each.plan for each in best), key=_text)


def test_plans_as_good_as_the_last_of_the_best_are_still_looked_at() -> None:
    *_, found = search(ORDERS, MACHINES["dgx-a100"], top=2)
    machine = MACHINES["dgx-a100"]
    goal = Objective("time", machine, 8)
    fabric = MachineFabric(machine, 8)
    machinery = Machinery(compute_costs(machine, fabric.ranks_per_node, 8), fabric, 2**40)
    asked = BranchAndBound(
        [space_of(ORDERS)], WorkerSetup([ORDERS], machinery, goal, unasked), top=2
    )
    for prediction in found.found:
        asked._insert(prediction)
    assert asked._threshold == goal.of(found.found[1]) + 1


@pytest.mark.parametrize("top", [1, 3, FEW + 1])
def test_plans_that_the_warm_start_found_are_listed_once(
    top: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the best of one order, then the best of all orders of its shape, then the search itself
    simulates them again. There are six orders of three axes."""
    *_, cold = search(ORDERS, MACHINES["dgx-a100"], top=top)
    one_order = replace(ORDERS, fixed={**ORDERS.fixed, "order": USUAL})
    likely = [space_of(one_order)]
    monkeypatch.setattr(branch_and_bound, "likely", lambda _: likely.pop() if likely else None)
    *_, warm = search(ORDERS, MACHINES["dgx-a100"], top=top)
    assert warm.simulated > cold.simulated
    assert [each.plan for each in warm.found] == [each.plan for each in cold.found]
    assert len({each.plan for each in warm.found}) == min(top, 6)


def unasked(plan: Plan) -> Simulated:
    raise AssertionError(plan)


def _text(plan: object) -> tuple[int, str]:
    return len(str(plan)), str(plan)


def test_the_reason_named_is_the_same_whichever_process_came_upon_it_first() -> None:
    one, two = Tally(), Tally()
    one.refuse(2, "b")
    two.refuse(1, "a")
    for tally in (one + two, two + one, Tally() + one + Tally() + two):
        assert (tally.unpredicted, tally.reason) == (3, "a")
