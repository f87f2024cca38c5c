"""Plans that a machine has no times for: told apart from those that lose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.predict import Prediction, predict
from simulator.search import SearchProblem, best_plan, checked, search
from simulator.search.baselines import exhaustive
from simulator.search.objective import Objective
from tests.messages import assert_names, names
from tests.simulator.search.answers import last, proved
from tests.simulator.search.drawn import MACHINES
from tests.simulator.search.measured_tables import TINY, measured, with_kernels
from topologies.errors import MachineError
from workload.gpt import GPT
from workload.grid import USUAL
from workload.plan import Plan

SMALL = GPT.of(name="small", layers=4, hidden=512, heads=4, ffn=2048, sequence=512, vocab=1000)
FEW: dict[str, Any] = {"recompute": "none", "overlap": (), "mbs": 2, "schedule": "1f1b"}
NO_EIGHT = ("all_reduce", "8", "2", "4")  # no group of 8 was measured, only those of 2 and 4


@pytest.mark.parametrize(
    ("sizes", "fixed"),
    [
        ({"all_reduce": (2, 4)}, {"pp": 2, "tp": 2}),
        ({"send_recv": (4,)}, {"order": USUAL, "tp": 2, "z": 1}),
        pytest.param(
            {"all_gather": (2,), "reduce_scatter": (2, 4)},
            {"order": USUAL},
            marks=pytest.mark.slow,
        ),
        pytest.param({"all_reduce": (8,)}, {"order": USUAL, "pp": 2}, marks=pytest.mark.slow),
    ],
)
def test_the_best_of_those_that_can_be_predicted_is_found_and_the_others_are_counted(
    sizes: dict[str, tuple[int, ...]], fixed: dict[str, Any]
) -> None:
    problem = SearchProblem(SMALL, 8, 16, {**FEW, "zero": 0, "y": 1, "vpp": 1, **fixed})
    machine = measured(**sizes)
    *_, found = search(problem, machine, top=2)
    *_, every = exhaustive(problem, machine, top=2)
    assert 0 < found.unpredicted == every.unpredicted
    assert any(kind in found.reason for kind in sizes)
    goal = Objective("time", machine, 8)
    assert [*map(goal.of, found.found)] == [*map(goal.of, every.found)]
    assert found.is_optimal
    assert found.fitting == every.fitting == found.considered


def test_a_plan_whose_prediction_alone_finds_no_time_is_counted_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = SearchProblem(SMALL, 4, 8, {**FEW, "zero": 0})
    machine = MACHINES["perlmutter"]
    *_, best = search(problem, machine)
    unlucky = best.found[0].plan

    def predicted(gpt: GPT, plan: Plan, *others: Any, **how: Any) -> Prediction:
        if plan == unlucky:
            raise MachineError("nobody knows")
        return predict(gpt, plan, *others, **how)

    monkeypatch.setattr("simulator.search.predict", predicted)
    *_, second = search(problem, machine)
    assert (second.unpredicted, second.reason, second.is_optimal) == (1, "nobody knows", True)
    assert second.found[0].plan != unlucky
    assert second.found[0].step_s >= best.found[0].step_s


def test_where_no_plan_can_be_predicted_one_sentence_says_why() -> None:
    problem = SearchProblem(SMALL, 8, 16, {**FEW, "dp": 8})
    machine = measured(all_reduce=(2, 4))
    *_, state = search(problem, machine)
    assert (state.found, state.unpredicted) == ((), state.fitting)
    assert_names(state.reason, *NO_EIGHT)
    with pytest.raises(MachineError, check=names(*NO_EIGHT)):
        checked(state)
    with pytest.raises(MachineError, check=names(*NO_EIGHT)):
        best_plan(SMALL, machine, 8, 16, fixed=problem.fixed)


@pytest.mark.parametrize("kind", ["ring", "all_gather"])
def test_of_attentions_without_a_table_and_with_one_the_latter_are_found(kind: str) -> None:
    """A machine that measured those of sequences split in one way alone predicts such plans."""
    ways = (f".{kind}", f".{kind}.unmasked")
    kernels = tuple(each + way for each in ("attention", "attention_grad") for way in ways)
    machine = with_kernels("dgx-a100", 4e-5, kernels)
    fixed = {**FEW, "tp": 1, "y": 1, "z": 1, "pp": 1, "zero": 0, "vpp": 1}
    several = {"context_kind": (kind,)}
    problem = SearchProblem(replace(TINY, sequence=8192), 4, 16, fixed, several=several)
    tree = proved(problem, machine)
    *_, every = exhaustive(problem, machine)
    assert tree.best is not None
    assert tree.best.step_s == every.found[0].step_s
    assert tree.best.plan.context.kind == kind
    assert 0 < tree.tally.unpredicted == every.unpredicted
    assert last(search(problem, machine)).found[0].step_s <= tree.best.step_s
