"""Keys of a plan that a stack gives where other keys are as a rule says.

`[[plan.where]]` of a stack's file is such a rule: `when` has keys of the plan with a value, a list
of values or, for a number, `">1"`; the rule's other keys are what the stack gives then. Later rules
come before earlier ones, and all of them before the keys of `plan` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from workload.errors import PlanError
from workload.overlaps import EVERY
from workload.plan import Plan
from workload.plan_fields import DEFAULTS
from workload.plan_text import plan_value

WHERE, WHEN = "where", "when"
NO_KEYS = (WHERE, "selective", "split")  # of a stack's `plan`, which are no keys of a plan
Given = Mapping[str, Any]  # a rule, or what a plan says
Said = Given | Plan
NOTHING: Given = MappingProxyType({})


def defaults_of(plan: Given, said: Said) -> dict[str, Any]:
    """What a stack's `plan` gives one that says this, lists as tuples."""
    keys = {key: value for key, value in plan.items() if key not in NO_KEYS}
    keys |= given_where(plan, said)
    return {key: tuple(each) if isinstance(each, list) else each for key, each in keys.items()}


def given_where(plan: Given, said: Said) -> dict[str, Any]:
    """The keys that the rules of a stack's `plan` give one that says this.

    >>> rules = {"where": [{"when": {"tp": ">1"}, "sp": True}]}
    >>> given_where(rules, {"tp": "8"}), given_where(rules, {})
    ({'sp': True}, {})
    """
    found: dict[str, Any] = {}
    known = {**DEFAULTS, **plan, **(said if isinstance(said, Mapping) else _words(said))}
    for rule in plan.get(WHERE, ()):
        if all(_is(key, wanted, known.get(key)) for key, wanted in rule[WHEN].items()):
            found |= {key: value for key, value in rule.items() if key != WHEN}
    return found


def following(plan: Given, before: Plan, change: Given) -> dict[str, Any]:
    """A change of a plan, and what the stack then gives where it has what the stack gave before."""
    found = dict(change)
    old, new = defaults_of(plan, before), defaults_of(plan, {**_words(before), **change})
    for key in {*given_where(plan, before), *given_where(plan, {**_words(before), **change})}:
        was, has = (each.get(key, DEFAULTS[key]) for each in (old, new))
        if key not in change and _same(before.value(key), was):
            found[key] = tuple(each for each in EVERY if each in has) if key == "overlap" else has
    return found


def above(base: Given, own: Given) -> dict[str, Any]:
    """A stack's `plan` upon that of its base: its keys do away with the base's rules for them."""
    rules = []
    for rule in base.get(WHERE, ()):
        left = {key: value for key, value in rule.items() if key not in own}
        rules += [left] if left.keys() != {WHEN} else []
    rules += own.get(WHERE, ())
    plan = {**base, **own}
    return {**plan, WHERE: rules} if WHERE in plan else plan


def words_of_rule(rule: Given) -> tuple[str, str]:
    """A rule's condition and what it gives, as a person reads it.

    >>> words_of_rule({"when": {"x": ">1", "zero": [2, 3]}, "overlap": ["dp", "oag"]})
    ('where x>1, zero=2 or 3', 'overlap=dp+oag')
    """
    gives = (f"{key}={_text(value, '+')}" for key, value in rule.items() if key != WHEN)
    when = (f"{key}{_compared(value)}" for key, value in rule[WHEN].items())
    return f"where {', '.join(when)}", ", ".join(gives)


def _words(plan: Plan) -> dict[str, Any]:
    return plan.flat()


def _same(one: Any, other: Any) -> bool:
    return bool(set(one) == set(other) if isinstance(one, tuple) else one == other)


def _is(key: str, wanted: Any, said: Any) -> bool:
    try:
        value = plan_value(key, said)
    except PlanError:
        return False  # the plan's reader refuses it
    if is_bound(wanted):
        return isinstance(value, int) and value > int(wanted[1:])
    values = wanted if isinstance(wanted, list) else [wanted]
    return any(value == plan_value(key, each) for each in values)


def is_bound(wanted: Any) -> bool:
    """Whether a condition is of numbers above one, as `>1`."""
    return isinstance(wanted, str) and wanted[:1] == ">" and wanted[1:].isdecimal()


def _compared(value: Any) -> str:
    return value if is_bound(value) else f"={_text(value, ' or ')}"


def _text(value: Any, between: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return between.join(map(str, value)) or "none" if isinstance(value, list) else str(value)
