"""Dispatchers of experts: which of them a search may choose, and which have programs of their own.

Most send rows by the same all-to-alls and share one program and one bound (`dispatched.py`). Where
tokens of all ranks are gathered the program has other ops, so plans with that dispatcher are a part
of the problem: its programs are lowered with it, and its bounds have its own payloads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulator.stacks.stack import Stack
from workload.dispatchers.table import ALL_GATHER, WITHOUT_BOUNDS
from workload.errors import PlanError
from workload.gpt import GPT

if TYPE_CHECKING:
    from simulator.search.problem import SearchProblem

KEY = "dispatcher"


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


def parts(problem: SearchProblem) -> Iterator[SearchProblem]:
    """A problem in parts by its dispatchers: those that send rows, and that which gathers tokens.

    All plans of the second split experts, unless it is alone: without that there are no rows to
    send, whatever the dispatcher.
    """
    given = problem.dispatchers
    senders = tuple(each for each in given if each != ALL_GATHER)
    if len(senders) == len(given) or not senders:
        yield problem
        return
    rest = {key: words for key, words in problem.several.items() if key != KEY}
    yield replace(problem, several={**rest, KEY: senders})
    gathers = {**problem.fixed, KEY: ALL_GATHER}
    yield replace(problem, several=rest, fixed=gathers, least_expert=2)


def of_program(fields: Mapping[str, Any], dispatchers: Sequence[str]) -> dict[str, Any]:
    """The dispatcher of the program that stands for all plans of a shape, if it is not the usual
    one."""
    gathers = ALL_GATHER in dispatchers and fields["expert"] > 1
    return {KEY: ALL_GATHER} if gathers else {}
