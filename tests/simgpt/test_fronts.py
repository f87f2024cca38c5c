"""When a search is good enough, which plans stand along its fronts, and what is certified."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from simgpt.interrupts import Patience
from simgpt.search_output import Found, _group, variants
from simgpt.search_runner import Searches
from simulator.predict import Prediction, predict
from simulator.search import Progress, SearchProblem
from simulator.uncertainty.anchors import QuestionAnchors
from tests.messages import assert_names
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.plan_text import parse_plan

FRONTIER = load_machine("frontier")
QUESTION = SearchProblem(find_model("tiny-1m"), 8, 16)
PLAIN = predict(find_model("tiny-1m"), parse_plan("dp=8", batch=16), FRONTIER)


def taking(step_s: float, nodes: int = 1, peak_bytes: int = 100) -> Prediction:
    """A plan of so many seconds on so many nodes."""
    cost = replace(PLAIN.cost, step_s=step_s, nodes=nodes)
    memory = replace(PLAIN.memory, peak_bytes=peak_bytes)
    plan = replace(PLAIN.plan, dp=8 * nodes, batch=16 * nodes)
    return replace(PLAIN, step_s=step_s, cost=cost, memory=memory, plan=plan)


def state(*found: Prediction, bound: float = 0.0, is_optimal: bool = False) -> Progress:
    best = min((each.step_s for each in found), default=0.0)
    return Progress(9, 9, 9, bound, best, found, is_optimal)


def searches(gap: float = 0.0) -> Searches:
    blind = QuestionAnchors(())
    return Searches(FRONTIER, "scheduler", Patience(), "time", 1, 1, False, gap, blind)


def test_a_search_ends_once_the_best_may_miss_the_optimum_by_no_more_than_the_gap() -> None:
    """At best a tenth of 10 s could be saved."""
    tenth = state(taking(10.0), bound=9.0)
    assert tenth.gap == pytest.approx(0.1)
    assert [searches(gap)._is_good(tenth) for gap in (0.0, 0.05, 0.2)] == [False, False, True]
    assert not searches(1.0)._is_good(state())


def test_each_plan_of_less_memory_has_a_tenth_less_than_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 100, 80 and 60 bytes: there must be one in 90, then one in 72, and there is none in 54."""
    rooms: list[int] = []

    def states(self: Searches, problem: SearchProblem, room: int) -> Iterator[Progress]:
        rooms.append(room)
        fitting = [taking(200.0 - n, peak_bytes=n) for n in (80, 60) if n <= room]
        yield state(*fitting[:1], is_optimal=True)

    monkeypatch.setattr(Searches, "_states", states)
    front = searches().memory_front(QUESTION, state(taking(100.0), is_optimal=True))
    assert [each.memory.peak_bytes for each in front] == [100, 80, 60]
    assert rooms == [90, 72, 54]


def test_along_the_front_of_devices_no_plan_is_beaten_in_both_time_and_node_hours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1 node 8 s; 2 nodes 5 s, faster for 10; 4 nodes 5 s for 20 is not; 8 nodes 2 s for 16."""
    steps = {8: 8.0, 16: 5.0, 32: 5.0, 64: 2.0}

    def answer(self: Searches, problem: SearchProblem, *, alone: bool) -> Progress:
        found = taking(steps[problem.devices], problem.devices // 8)
        return state(found, is_optimal=True)

    monkeypatch.setattr(Searches, "answer", answer)
    best = state(taking(8.0), is_optimal=True)
    front = searches().devices_front(QUESTION, best, (16, 32, 64))
    assert [(each.devices, each.step_s) for each in front] == [(8, 8.0), (16, 5.0), (64, 2.0)]


def certificate(objective: str, enough: float, stopped: Progress) -> str:
    found = Found(QUESTION, FRONTIER, stopped, objective, enough, {})
    return " ".join(found.certificate().split()).partition(": ")[2]


def test_a_search_says_whether_it_reached_its_gap_or_ran_out_of_time() -> None:
    stopped = state(taking(10.0), bound=7.0)
    reached, missed, never = (certificate("time", enough, stopped) for enough in (0.5, 0.1, 0.0))
    assert_names(reached, "50.0 %", "7.00 s", "30.0 %")
    assert_names(missed, "7.00 s", "30.0 %")
    assert "50.0 %" not in missed
    assert missed == never


def test_bounds_on_energies_are_told_in_joules() -> None:
    stopped = state(taking(1e5), bound=7e4)
    assert_names(certificate("energy", 0.0, stopped), "70.0 kJ")


def at(step_s: float, **fields: Any) -> Prediction:
    """A plan of so many seconds, with other fields."""
    found = taking(step_s)
    return replace(found, plan=found.plan.changed(**fields))


def test_plans_on_the_same_axes_within_half_a_per_cent_are_listed_as_one() -> None:
    """The fourth is 0.6 % slower than the first, and the third stands on other axes."""
    found = [at(10.0), at(10.04, zero=1), at(10.045, dp=4, tp=2), at(10.06, zero=2)]
    assert variants(found) == [[0, 1], [2], [3]]
    words, first = _group(found, [0, 1])
    assert first == found[0]
    assert_names(words, str(first.plan), "1", "0.4 %", "zero")
    assert _group(found, [2])[0] == str(found[2].plan)
    listed = answer(state(*found, is_optimal=True)).describe()
    assert listed.count("10.0 s") == 2
    assert answer(state(*found, is_optimal=True)).as_record()["variants"] == [[0, 1], [2], [3]]


def answer(found: Progress, objective: str = "time") -> Found:
    return Found(QUESTION, FRONTIER, found, objective, 0.0, {})


def test_what_the_error_of_a_difference_leaves_undecided_is_said() -> None:
    """It is near a fifth: of 10, 10.5 and 20 s the first two are undecided."""
    some = answer(state(at(10.0), at(10.5), at(20.0), is_optimal=True))
    error = some.as_record()["difference_error"]
    assert 0.05 < error < 0.2
    assert some.as_record()["undecided"] == [0, 1]
    assert_names(said_of_the_error(some), "2", f"{100 * error:.1f} %")
    decided = answer(state(at(10.0), at(20.0), is_optimal=True))
    assert decided.as_record()["undecided"] == []
    assert_names(said_of_the_error(decided), f"{100 * error:.1f} %")


def said_of_the_error(some: Found) -> str:
    """The last paragraph, but for where the error is from."""
    return some.describe().rpartition("\n\n")[2].partition("(for 503")[0]


@pytest.mark.parametrize(
    ("steps", "undecided", "counts"),
    [
        ((10.0, 10.01, 10.5), [0, 1, 2], "2 3"),  # rows and plans
        ((10.0, 10.01, 10.5, 20.0), [0, 1, 2], "2 3"),
        ((10.0, 10.01, 10.02), [0, 1, 2], "3"),  # of one row
        ((10.0, 10.01, 20.0), [0, 1], "2"),
        ((10.0, 10.5), [0, 1], "2"),
    ],
)
def test_plans_that_cannot_be_told_apart_are_counted_as_the_table_shows_them(
    steps: tuple[float, ...], undecided: list[int], counts: str
) -> None:
    some = answer(state(*map(at, steps), is_optimal=True))
    assert some.as_record()["undecided"] == undecided
    numbers = re.findall(r"(?<![\d.])\d+(?![\d.])", said_of_the_error(some))
    assert numbers == counts.split()


def test_of_one_plan_and_of_energies_no_error_of_a_difference_is_known() -> None:
    for some in (
        answer(state(at(10.0), is_optimal=True)),
        answer(state(at(10.0), at(10.1), is_optimal=True), "energy"),
    ):
        assert some.as_record()["difference_error"] is None
        assert "(of 503" not in some.describe()
