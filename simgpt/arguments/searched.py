"""Fields that a search keeps, and those of which it may choose one of several values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simgpt.step import plan_table
from workload.errors import PlanError
from workload.plan_text import REST, parse_fields, split_plan
from workload.recipes.table import NO_RECIPE, RECIPE_NAMES
from workload.splits.plan_values import CHOICES

if TYPE_CHECKING:
    from simulator.stacks import Stack

Several = dict[str, tuple[str, ...]]
ANY = {
    "precision": (*CHOICES["precision"], *(name for name in RECIPE_NAMES if name != NO_RECIPE)),
    "context_kind": CHOICES["context_kind"],
    "dispatcher": CHOICES["dispatcher"],
}


def searched_of(text: str, stack: Stack | None = None) -> tuple[dict[str, Any], Several]:
    """The fields of a plan that all plans have, from its text or file; and those that may have any
    of several words, as in `precision=bf16+mxfp8`. dp=rest keeps nothing, and overlap=all what
    the stack can have together.

    >>> searched_of("zero=1,dp=rest,dispatcher=usual+hierarchical")
    ({'zero': 1}, {'dispatcher': ('usual', 'hierarchical')})
    """
    given = plan_table(text)
    words = split_plan(given) if isinstance(given, str) else dict(given)
    several: Several = {}
    for key in words.keys() & ANY.keys():
        if "+" in str(words[key]):
            several[key] = _checked(key, tuple(str(words.pop(key)).split("+")))
    fixed = parse_fields(words)
    if stack is not None and "all" in str(words.get("overlap", "")):
        from simulator.stacks.all_overlaps import kept_of_search

        fixed["overlap"] = kept_of_search(words, fixed["overlap"], stack)
    if "precision" in several and "recipe" in fixed:
        raise PlanError("precision and recipe both name a recipe: give one of them")
    return {key: value for key, value in fixed.items() if (key, value) != ("dp", REST)}, several


def _checked(key: str, given: tuple[str, ...]) -> tuple[str, ...]:
    for word in given:
        if word not in ANY[key]:
            known = ", ".join(ANY[key])
            raise PlanError(f"{key}={word} is not supported in a list; use some of {known}")
    if len({*given}) < len(given):
        raise PlanError(f"{key}={'+'.join(given)} names one twice")
    return given
