"""The importance of a plan's fields: shares that can be worked out by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from simulator.explain.plan_importance import plan_importance, shapley_shares
from simulator.stacks import load_stack
from simulator.stacks.stack import EXECUTOR
from tests.messages import names
from tests.simgpt.face import simgpt
from topologies.machine_files import load_machine, with_settings
from topologies.placement import scheduler
from workload.errors import PlanCannotRunError
from workload.gpt import find_model
from workload.plan_text import parse_plan

BITS = [(a, b) for a in (0, 1) for b in (0, 1)]


def test_fields_that_matter_only_together_share_alike() -> None:
    assert shapley_shares("ab", BITS, [0.0, 1.0, 1.0, 0.0]) == {"a": 0.5, "b": 0.5}


def test_of_fields_that_say_the_same_each_has_half() -> None:
    """tp=1 with dp=2, or tp=2 with dp=1: either tells the plan."""
    rows = [(1, 2, 0), (1, 2, 1), (2, 1, 0), (2, 1, 1)]
    shares = shapley_shares(["tp", "dp", "zero"], rows, [0.0, 0.0, 4.0, 4.0])
    assert shares == {"tp": 0.5, "dp": 0.5, "zero": 0.0}


def test_a_small_sample_gives_no_share_to_a_field_that_does_nothing() -> None:
    """Of 400 rows of 40,000, most alone in what 200 values of `b` say of them: `a` alone decides,
    up to noise of its own that no field explains until all rows differ."""
    draws = np.random.default_rng(1)
    rows = draws.integers((2, 200), size=(400, 2)).tolist()
    values = [float(a) for a, _ in rows]
    shares = shapley_shares("ab", rows, values, drawn=0.01)
    assert shares["a"] == pytest.approx(1.0, abs=0.1)
    plain = shapley_shares("ab", rows, values)
    assert plain["b"] > 0.15  # what groups of one and two plans seem to explain, uncorrected


def test_shares_sum_to_one_and_fields_without_a_choice_have_none() -> None:
    rows = [(a, b, c, 7) for a, b, c in product(range(2), range(3), range(2))]
    values = [a + b * c + 0.1 * b for a, b, c, _ in rows]
    shares = shapley_shares("abcd", rows, values)
    assert set(shares) == set("abc")
    assert sum(shares.values()) == pytest.approx(1.0)


@pytest.mark.slow
def test_the_space_has_the_plans_of_the_stack_for_the_same_devices_and_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simulator.explain.plan_importance.PLANS", 40)
    gpt, stack = find_model("tiny-1m"), load_stack("megatron-deepspeed")
    plan, machine = parse_plan("dp=4,overlap=none", batch=8), load_machine("frontier")
    found = plan_importance(gpt, plan, machine, scheduler(machine, 4), stack)
    assert {"y", "z"}.isdisjoint(found.shares)  # of DeepSpeed's plans these are 1
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.plans + found.unfit <= found.space
    assert (found.fastest.grid.ranks, found.fastest.batch) == (4, 8)
    assert found.spread >= 1


def test_plans_that_no_search_has_are_refused_by_name() -> None:
    gpt, machine = find_model("tiny-1m"), load_machine("frontier")
    plan = parse_plan("dp=4,zero=1,shard=2", batch=8)
    with pytest.raises(PlanCannotRunError, check=names("shard")):
        plan_importance(gpt, plan, machine, scheduler(machine, 4), EXECUTOR)
    alone = parse_plan("dp=1", batch=1)
    with pytest.raises(PlanCannotRunError, match="needs 8"):
        plan_importance(gpt, alone, machine, scheduler(machine, 1), EXECUTOR)


@pytest.mark.usefixtures("exact_peaks")
def test_only_plans_that_fit_have_a_part_in_the_importance() -> None:
    """Of 12 plans the 3 pipelines are the fastest and the largest: they need 416 to 422 kB, where
    the others, of tp=2 or y=2, need 333 to 357 kB."""
    gpt, plan = find_model("tiny-30k"), parse_plan("tp=2,overlap=none", batch=1)
    small = {"device.memory": "400 kB", "device.reserve": "0 B"}
    machine = with_settings(load_machine("frontier"), small)
    found = plan_importance(gpt, plan, machine, scheduler(machine, 2), EXECUTOR)
    assert (found.plans, found.unfit, found.space) == (9, 3, 12)
    assert found.fastest == plan
    assert "pp" not in found.shares


@pytest.mark.slow
def test_why_tells_the_importance_when_it_is_asked_to() -> None:
    words = ("why", "tiny-1m", "-m", "frontier", "--plan", "dp=4", "--batch", "8")
    said = simgpt(*words, "--plan-importance")
    assert said.status == 0
    assert "Shapley" in said.out
    assert "Shapley" not in simgpt(*words).out


@pytest.mark.slow
def test_of_a_model_with_experts_splits_of_these_and_of_sequences_have_shares() -> None:
    gpt, machine = find_model("tiny-mixtral-2m"), load_machine("dgx-b200")
    plan = parse_plan("cp=2,dp=4,ep=2,overlap=none,recipe=fp8-tensorwise", batch=8)
    found = plan_importance(gpt, plan, machine, scheduler(machine, 8), EXECUTOR)
    assert {"ep", "cp", "context_kind"} <= set(found.shares)
    assert "dispatcher" not in found.shares  # of which the stack tries one
    assert found.fastest.training.recipe == "fp8-tensorwise"
    assert sum(found.shares.values()) == pytest.approx(1.0)
    whole = parse_plan("dp=8,ep=2,overlap=none", batch=8)
    shares = plan_importance(gpt, whole, machine, scheduler(machine, 8), EXECUTOR).shares
    assert "ep" in shares
    assert "cp" not in shares
