"""A search by several processes: whichever is through first, they find what one of them finds."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from simulator.pool import Pool
from simulator.search import search
from simulator.search.bounds.batched_programs import kinds, sizes_of
from simulator.search.objective import OBJECTIVES
from simulator.search.problem import SearchProblem
from simulator.search.progress import Progress, Tally
from simulator.search.space import space_of
from simulator.search.workers import WorkerReport, Workers, share_of
from tests.examples import few_and_many
from tests.simulator.search.drawn import DRAWN, MACHINES, few_plans
from topologies.session import Session
from workload.gpt import GPT, find_model
from workload.plan import Plan

SMALL = GPT.of(name="small", layers=4, hidden=512, heads=4, ffn=2048, sequence=512, vocab=1000)
NARROW = {"tp": 4, "overlap": (), "order": "tp-dp-pp", "mbs": 1}


class InTurn(Pool):
    """The processes of a pool run one after the other, in any order: what goes over pipes is
    pickled, and what each one keeps is its own."""

    def __init__(self, count: int, seed: int) -> None:
        super().__init__(count)
        self._random = random.Random(seed)
        self._tasks: dict[int, bytes] = {}
        self._own = [Session() for _ in range(count)]
        self.asked: list[str] = []
        self.answered: list[Any] = []

    def start(self) -> None:
        """There are none to start."""

    @property
    def idle(self) -> list[int]:
        return [number for number in range(self.count) if number not in self._tasks]

    def submit(self, number: int, function: Callable[..., Any], *args: object) -> None:
        assert number not in self._tasks
        self.asked.append(function.__name__ if hasattr(function, "__name__") else "map")
        self._tasks[number] = pickle.dumps((function, args))

    def wait(self) -> tuple[int, Any]:
        number = self._random.choice(sorted(self._tasks))
        function, args = pickle.loads(self._tasks.pop(number))
        with self._own[number]:
            answer = pickle.loads(pickle.dumps(function(*args)))
        self.answered.append(answer)
        return number, answer


class Reporting(Pool):
    """One process, which answers its tasks with these reports, one after the other."""

    def __init__(self, *reports: WorkerReport) -> None:
        super().__init__(1)
        self._reports = list(reports)
        self.asked: list[str] = []

    def start(self) -> None:
        """There is none to start."""

    @property
    def idle(self) -> list[int]:
        return [0]

    def submit(self, number: int, function: Callable[..., Any], *args: object) -> None:
        self.asked.append(function.__name__)

    def wait(self) -> tuple[int, Any]:
        return 0, self._reports.pop(0) if self.asked[-1] == "work" else None


def by_team(
    problem: SearchProblem, name: str, pool: Pool, *, worth: int = 1, **how: Any
) -> list[Progress]:
    """The states of a search by a pool, which shares a space of at least `worth` shapes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simulator.search.branch_and_bound.WORTH", worth)
        patch.setattr("simulator.search.workers.WORK_S", 0)
        patch.setattr("simulator.search.Pool", lambda *_: pool)
        return list(search(problem, MACHINES[name], workers=2, **how))


def holds_for_a_team(problem: SearchProblem, name: str, data: st.DataObject) -> None:
    how: dict[str, Any] = {
        "top": data.draw(st.integers(1, 3)),
        "objective": data.draw(st.sampled_from(OBJECTIVES)),
    }
    if data.draw(st.booleans()):
        *_, roomy = search(problem, MACHINES[name], top=10**6)
        peaks = [each.memory.peak_bytes for each in roomy.found]
        how["capacity_bytes"] = data.draw(st.sampled_from(peaks))
    *_, alone = search(problem, MACHINES[name], **how)
    pool = InTurn(data.draw(st.integers(2, 4)), data.draw(st.integers(0, 10**6)))
    states = by_team(problem, name, pool, **how)
    answer = states[-1]
    assert answer.is_optimal
    assert [each.as_dict() for each in answer.found] == [each.as_dict() for each in alone.found]
    assert (answer.best, answer.bound, answer.gap) == (alone.best, alone.bound, 0)
    assert (answer.considered, answer.fitting) == (alone.considered, alone.fitting)
    for before, after in pairwise(states):  # one from beyond the core space may be below its bound
        assert after.bound >= min(before.bound, after.best)
    assert not any(state.is_optimal for state in states[:-1])


@pytest.mark.slow
@few_and_many(
    15,
    100,
    DRAWN,
    slow={"problem": few_plans(most=200)},
    problem=few_plans(),
    name=st.sampled_from(sorted(MACHINES)),
    data=st.data(),
)
def test_a_team_finds_what_one_finds(
    problem: SearchProblem, name: str, data: st.DataObject
) -> None:
    holds_for_a_team(problem, name, data)


def test_a_search_is_by_one_process_unless_it_is_given_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []

    def pool(count: int, *how: Any) -> Pool:
        counts.append(count)
        return Pool(count, *how)

    monkeypatch.setattr("simulator.search.Pool", pool)
    assert list(search(SearchProblem(SMALL, 4, 8, NARROW), MACHINES["perlmutter"]))
    assert counts == [1]


def test_shares_are_alike_and_have_programs_of_equal_sizes_together() -> None:
    space = space_of(SearchProblem(find_model("gpt-10b"), 64, 64))
    every = np.arange(len(space))
    owner = {sizes_of(space, rows): set[int]() for rows in kinds(space, every, together=True)}
    counts = []
    for number in range(3):
        own = share_of(space, number, 3)
        parts = kinds(own, np.arange(len(own)), together=True)
        counts.append(len(parts))
        for rows in parts:
            owner[sizes_of(own, rows)].add(number)
    assert all(len(numbers) == 1 for numbers in owner.values())
    assert max(counts) <= 1.5 * min(counts)


@pytest.mark.parametrize(("worth", "shares"), [(1, 2), (10**6, 0)])
def test_the_processes_share_a_space_that_is_large_enough(worth: int, shares: int) -> None:
    fixed = {"pp": 1, "tp": 2, "y": 1, "z": 1, "zero": 0, "recompute": "none", "overlap": ()}
    problem = SearchProblem(SMALL, 2, 2, {**fixed, "mbs": 2, "sp": False})
    pool = InTurn(2, 0)
    by_team(problem, "perlmutter", pool, worth=worth)
    assert pool.asked.count("settle") == shares


def test_only_the_first_plan_is_simulated_before_nodes_with_lower_bounds() -> None:
    """A plan must undercut 10; two that may are waiting, with bounds of 7 and 8, while a node with
    a bound of 5 is open. The next one that is simulated is the one with the node's new bound."""
    plans = [(7, Plan(batch=1, mbs=1)), (8, Plan(batch=2, mbs=1))]
    pool = Reporting(WorkerReport(Tally(), 5, plans, {}), WorkerReport(Tally(), 8, [], {}))
    workers = Workers(pool)
    found = [outcome for _ in range(4) for outcome in workers.step(10)]
    assert pool.asked == ["work", "simulated", "work", "simulated"]
    assert [candidate for candidate, _ in found] == plans
