"""Answers that version 0.2 wrote, in the words of today."""

from __future__ import annotations

import re
from typing import Any

from workload.grid import order_read
from workload.plan_text import plan_now
from workload.words.former_words import FORMER_WORDS, axes_now, key_now, keys_now

PLAN, POINT, VARIED, AXES = "plan", "point", "varied", "axes"
SENTENCES = ("sentence", "words", "reason", "change", "plan")
TEXTS = ("plan_string", "fastest_plan_string")
BY_AXES = ("breakdown_s", "comm_bytes", "excess_s")  # tables whose keys are axes


def answer_now(value: Any) -> Any:
    """An answer with the names of today for axes and for a plan's fields, wherever it has some; one
    of today is unchanged."""
    if isinstance(value, list):
        return list(map(answer_now, value))
    if not isinstance(value, dict):
        return value
    return {key: _value_now(key, each) for key, each in value.items()}


def _value_now(key: str, value: Any) -> Any:
    if key in TEXTS and isinstance(value, str):
        return plan_now(value)
    if key in SENTENCES and isinstance(value, str):
        return re.sub(rf"\b({'|'.join(FORMER_WORDS)})=", lambda each: f"{key_now(each[1])}=", value)
    if key == AXES and isinstance(value, str):
        return axes_now(value)
    if key == VARIED and isinstance(value, list):
        return [_key_of_point(each) if isinstance(each, str) else each for each in value]
    if not isinstance(value, dict):
        return answer_now(value)
    if key in BY_AXES:
        return {axes_now(axes): each for axes, each in value.items()}
    if key == POINT:
        return {_key_of_point(name): _of_point(name, each) for name, each in value.items()}
    if key == PLAN:
        plan = keys_now(value)
        order = plan.get("order")
        return plan | ({"order": order_read(order)} if isinstance(order, str) else {})
    return answer_now(value)


def _of_point(key: str, value: Any) -> Any:
    """A value of a study's point; its plan's text is one of a user."""
    return plan_now(value) if key == PLAN and isinstance(value, str) and "=" in value else value


def _key_of_point(key: str) -> str:
    """A key of a study's point: `plan.x` as `plan.tp`."""
    head, dot, name = key.rpartition(".")
    return f"{head}{dot}{key_now(name)}" if head == PLAN else key
