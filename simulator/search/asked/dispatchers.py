"""Dispatchers of experts: which of them a search may choose, and which have programs of their own.

Most send rows by the same all-to-alls and share one program and one bound (`dispatched.py`). Where
tokens of all ranks are gathered the program has other ops, so plans with that dispatcher are a part
of the problem: its programs are lowered with it, and its bounds have its own payloads.
So are plans that send rows in 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulator.stacks.stack import Stack
from workload.dispatchers.table import ALL_GATHER, WITHOUT_BOUNDS, recipe_refusal
from workload.errors import PlanError
from workload.gpt import GPT
from workload.recipes.table import NO_RECIPE, RECIPE_NAMES

if TYPE_CHECKING:
    from simulator.search.problem import SearchProblem

KEY, NARROW = "dispatcher", "fp8_dispatch"


def check(given: Sequence[str], gpt: GPT, stack: Stack) -> None:
    """Refuse dispatchers that are asked for and that the model or the stack has not, and those of
    which no bounds are known."""
    if given and not gpt.experts:
        raise PlanError(f"dispatcher={given[0]} sends rows to experts; {gpt.name} has none")
    if gpt.experts and not given:
        given = (stack.searched_dispatchers or stack.dispatchers)[:1]
    for each in given:
        stack.check_dispatcher(each)
        if each in WITHOUT_BOUNDS:
            raise PlanError(
                f"a search knows no bounds of dispatcher={each}; predict plans one by one, or "
                "by --sweep"
            )


def check_narrow(problem: SearchProblem) -> None:
    """Refuse rows in 8 bits where no plan of a problem could send them."""
    kept = bool(problem.fixed.get(NARROW))
    if not kept and NARROW not in problem.also:
        return
    if not problem.gpt.experts:
        raise PlanError(f"{NARROW}=true sends rows to experts; {problem.gpt.name} has none")
    fixed, several = problem.fixed, problem.several.get("precision", (NO_RECIPE,))
    every = (fixed.get("recipe", NO_RECIPE),) if {"recipe", "precision"} & {*fixed} else several
    refused = {each: why for each in every if (why := recipe_refusal(_recipe(each)))}
    if refused and (kept or len(refused) == len(every)):
        given, why = next(iter(refused.items()))
        than = f", not {given}" if given != NO_RECIPE else ""
        raise PlanError(f"{NARROW}=true {why}{than}")
    senders = [each for each in problem.dispatchers if each != ALL_GATHER]
    if not senders or (kept and len(senders) < len(problem.dispatchers)):
        raise PlanError(
            f"{NARROW}=true does not support {KEY}={ALL_GATHER}, which sends no rows one by one"
        )


def _recipe(precision: str) -> str:
    return precision if precision in RECIPE_NAMES else NO_RECIPE


def parts(problem: SearchProblem, *, also_narrow: bool) -> Iterator[SearchProblem]:
    """A problem in parts by its dispatchers: those that send rows, and that which gathers tokens;
    and those that send rows in 8 bits, if they are tried also.

    All plans of the second and of the third split experts, unless it is alone: without that there
    are no rows to send, whatever the dispatcher.
    """
    if problem.fixed.get(NARROW):
        yield replace(problem, least_expert=2)
        return
    given = problem.dispatchers
    senders = tuple(each for each in given if each != ALL_GATHER)
    rest = {key: words for key, words in problem.several.items() if key != KEY}
    sends = problem
    if senders and len(senders) < len(given):
        sends = replace(problem, several={**rest, KEY: senders})
    yield sends
    if sends is not problem:
        gathers = {**problem.fixed, KEY: ALL_GATHER}
        yield replace(problem, several=rest, fixed=gathers, least_expert=2)
    if also_narrow and senders and not recipe_refusal(problem.fixed.get("recipe", NO_RECIPE)):
        yield replace(sends, fixed={**problem.fixed, NARROW: True}, least_expert=2)


def of_program(fields: Mapping[str, Any], dispatchers: Sequence[str]) -> dict[str, Any]:
    """The dispatcher of the program that stands for all plans of a shape, if it is not the usual
    one."""
    gathers = ALL_GATHER in dispatchers and fields["ep"] > 1
    return {KEY: ALL_GATHER} if gathers else {}
