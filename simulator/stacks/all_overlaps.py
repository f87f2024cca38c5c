"""What `all` among a plan's overlaps stands for: those that its stack, its model and the plan can
have together, beside those that are named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.stacks.effects import in_effect
from simulator.stacks.runs import Runs
from simulator.stacks.stack import EXECUTOR, Stack
from workload.gpt import GPT
from workload.overlaps import EVERY, OVERLAPS
from workload.plan import Plan, text_of

ALL = "all"


def named_beside(words: Mapping[str, Any]) -> list[str] | None:
    """The overlaps that a plan's words name beside `all`; None where they do not say `all`.

    >>> named_beside({"overlap": "all+a2a"}), named_beside({"overlap": "dp"})
    (['a2a'], None)
    """
    given = words.get("overlap", ())
    said = given.split("+") if isinstance(given, str) else list(map(str, given))
    return [each for each in said if each != ALL] if ALL in said else None


def of_plan(plan: Plan, gpt: GPT, runs: Runs) -> Plan:
    """The plan with all overlaps beside its own that have something to overlap and that can be
    run."""
    for switch in OVERLAPS:
        taken = tuple(each for each in EVERY if each in (*plan.training.overlap, switch))
        trial = plan.changed(overlap=taken)
        if switch in in_effect(trial, gpt, runs.messages) and not runs.refusal(trial, gpt):
            plan = trial
    return plan


def kept_of_search(
    words: Mapping[str, Any], every: tuple[str, ...], stack: Stack
) -> tuple[str, ...]:
    """The overlaps that all plans of a search keep, given those that the words stand for: of `all`
    without those that the stack has not, or not beside others."""
    named, runs = named_beside(words), stack.runs
    if named is None or stack == EXECUTOR:
        return every
    taken = [each for each in EVERY if each in named]
    for switch in OVERLAPS:
        more = tuple(each for each in EVERY if each in (*taken, switch))
        if not runs.value_refusal("overlap", [switch]) and not runs.refusal_beside(more):
            taken = [*more]
    return tuple(taken)


def remark(named: list[str], plan: Plan) -> str:
    """What was taken for what."""
    asked = "+".join([ALL, *named])
    return (
        f"overlap={asked} is overlap={text_of(plan.training.overlap)}: what this plan can overlap"
    )
