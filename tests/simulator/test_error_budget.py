"""The error budget of a step: shares by hand, and what the confidence of numbers stands for."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest

from simulator.explain.error_budget import ERRORS, BudgetItem, ErrorBudget, error_budget
from simulator.explain.sensitivity import Elasticity, MachineParameter, parameters
from simulator.explain.why import why
from simulator.predict import predict
from topologies.files.facts import CONFIDENCES
from topologies.machine import Machine
from topologies.machine_files import load_machine
from topologies.placement import scheduler
from workload.gpt import find_model
from workload.plan_text import parse_plan

FRONTIER = load_machine("frontier")
MACHINES = ("perlmutter", "frontier", "alps", "lumi", "dgx-a100", "dgx-h100", "kestrel", "leonardo")


def with_confidence(machine: Machine, key: str, confidence: str) -> Machine:
    facts = [replace(f, confidence=confidence) if f.key == key else f for f in machine.entries]
    return replace(machine, entries=tuple(facts))


def of(confidence: str, value: float, key: str, unit: str | None) -> BudgetItem:
    """A number's only item, where the step depends on it so much."""
    machine = with_confidence(FRONTIER, key, confidence)
    parameter = next(p for p in parameters(FRONTIER, "bf16", pure=True) if p.name == key)
    assert parameter.unit == unit
    (item,) = error_budget(machine, [Elasticity(parameter, value)]).items
    return item


def test_a_numbers_share_is_its_weight_times_its_error() -> None:
    """A rate of low confidence may be off by 21 %, and the step depends on half of it."""
    item = of("low", -0.5, "node.nics.bandwidth", "bytes/s")
    assert item.error == 0.21
    assert item.share == pytest.approx(0.105)
    assert of("high", 0.5, "device.matmul.e_max", None).share == pytest.approx(0.025)
    assert of("medium", 0.2, "device.launch", "s").share == pytest.approx(0.12)


def test_a_number_of_no_confidence_counts_as_low() -> None:
    item = of("", -0.5, "node.nics.bandwidth", "bytes/s")
    assert (item.error, item.confidence, item.as_dict()["confidence"]) == (0.21, "", None)


def test_the_total_is_the_root_of_the_sum_of_squares() -> None:
    """3 % and 4 % make 5 %."""
    items = [BudgetItem("a", "1", "low", "s", 0.3, share) for share in (0.03, 0.04)]
    assert ErrorBudget(tuple(items)).total == pytest.approx(0.05)
    assert ErrorBudget(()).total == 0


def test_counts_of_links_are_right_or_wrong_and_left_out() -> None:
    links = MachineParameter("interconnect.global_links", 4, None, counted=True)
    assert error_budget(FRONTIER, [Elasticity(links, -0.5)]).items == ()


def test_every_confidence_has_an_error_and_the_surer_the_smaller() -> None:
    assert set(ERRORS) == set(CONFIDENCES) - {""}
    for column in (0, 1):
        errors = [ERRORS[level][column] for level in ("high", "medium", "low")]
        assert errors == sorted(errors)


def test_the_errors_are_those_by_which_numbers_spread_among_machines() -> None:
    """Of numbers that three machines or more have values of their own for."""
    logs: dict[tuple[str, bool], set[float]] = {}
    for name in MACHINES:
        machine = load_machine(name)
        for p in parameters(machine, "bf16", pure=True):
            if (p.is_pure or p.unit == "s") and ".nvls." not in p.name:
                logs.setdefault((p.name, p.unit == "s"), set()).add(round(math.log(p.value), 6))
    spreads: dict[bool, list[float]] = {False: [], True: []}
    for (name, is_duration), values in logs.items():
        if len(values) >= 3 and (is_duration or "efficiency" in name or ".e_max" in name):
            spreads[is_duration].append(statistics.pstdev(values))
    for column, errors in enumerate(zip(*ERRORS.values(), strict=True)):
        spread = statistics.median(spreads[column == 1])
        assert errors[-1] == pytest.approx(math.sqrt(2) * spread, rel=0.1)


def test_all_numbers_of_the_machine_are_in_the_budget_whatever_is_shown() -> None:
    gpt, plan = replace(find_model("tiny-1m"), layers=1), parse_plan("z=2", batch=2)
    where = scheduler(FRONTIER, 2)
    found = why(predict(gpt, plan, FRONTIER, placement=where), FRONTIER, where)
    assert not any(each.parameter.is_pure for each in found.elasticities)
    keys = {item.key for item in found.budget.items}
    assert {"device.matmul.e_max", "software.all_gather.launch"} <= keys
    shares = [item.share for item in found.budget.items]
    assert shares == sorted(shares, reverse=True)
    launch = next(i for i in found.budget.items if i.key == "software.all_gather.launch")
    weight = next(e for e in found.elasticities if e.parameter.name == launch.key)
    assert launch.share == pytest.approx(abs(weight.value) * ERRORS["high"][1])
