"""Of plans that are equally good the answer is the one with the shortest text, by whatever way."""

from __future__ import annotations

from simulator.search.baselines import exhaustive
from simulator.search.problem import SearchProblem
from simulator.search.progress import Tally
from tests.simulator.search.answers import proved
from tests.simulator.search.drawn import MACHINES
from workload.gpt import GPT

SMALL = GPT.of(name="small", layers=4, hidden=512, heads=4, ffn=2048, sequence=512, vocab=1000)
ORDERS = SearchProblem(
    SMALL, 8, 8, {"tp": 2, "y": 2, "z": 2, "mbs": 1, "recompute": "none", "overlap": ()}
)


def test_branch_and_bound_and_trying_all_agree_on_equal_plans() -> None:
    machine = MACHINES["dgx-a100"]
    best = proved(ORDERS, machine).best
    *_, every = exhaustive(ORDERS, machine, top=10**6)
    assert best is not None
    assert best.plan == every.found[0].plan
    equal = [each.plan for each in every.found if each.step_s == best.step_s]
    assert len(equal) > 1
    assert best.plan == min(equal, key=_text)


def _text(plan: object) -> tuple[int, str]:
    return len(str(plan)), str(plan)


def test_the_reason_named_is_the_same_whichever_process_came_upon_it_first() -> None:
    one, two = Tally(), Tally()
    one.refuse(2, "b")
    two.refuse(1, "a")
    for tally in (one + two, two + one, Tally() + one + Tally() + two):
        assert (tally.unpredicted, tally.reason) == (3, "a")
