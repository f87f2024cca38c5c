"""The keys of a study's points, by their short names too, and each value in its kind.

`model`, `machine`, `devices`, `batch` (or `batch_tokens`), `plan`, `placement`, `tokens`, `stack`
and `routing` stand for themselves. A field of the model is `model.layers` or `layers`, a key of the
plan `plan.zero` or `zero` (or `tp` and its like), and a value of the machine's file
`machine.device.launch` or `device.launch`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from simgpt.arguments.tokens import as_tokens, batch_tokens_of, tokens_of
from simgpt.options import MOST_DEVICES
from simgpt.studies.best_plan import BEST
from simgpt.studies.errors import StudyError
from topologies.placement_names import check_placement
from workload.descriptions.fields import KINDS, field_value
from workload.errors import ModelError
from workload.plan import text_of
from workload.plan_text import ALIASES, KEYS, REALS, REST, plan_value, plan_words
from workload.recipes.table import recipe_words
from workload.splits.plan_values import MOST, check_value
from workload.words.foreign_words import MODEL_WORDS, PLAN_WORDS, plain

Point = dict[str, Any]

PLAIN = (
    "model", "machine", "devices", "batch", "batch_tokens", "plan", "placement", "tokens", "stack",
    "routing",
)  # fmt: skip
MODEL = tuple(key for key in KINDS if key not in ("name", "source"))
PLAN = tuple(key for key in KEYS if key != "batch")
TABLES = ("device", "node", "nodes", "interconnect", "network", "software", "power")
MOST_COUNTED = {"devices": MOST_DEVICES, "batch": MOST}


def canonical(key: str) -> str:
    """A key by its full name.

    >>> canonical("zero"), canonical("layers"), canonical("device.launch"), canonical("plan.batch")
    ('plan.zero', 'model.layers', 'machine.device.launch', 'batch')
    """
    head, dot, rest = key.partition(".")
    bare = rest if dot and head in ("model", "plan") else key
    if key == "segment":
        return "machine.node.segment"
    bare = ALIASES.get(bare, bare) if bare == key or head == "plan" else bare
    if bare in PLAIN and bare in (key, "batch"):
        return bare
    if bare in PLAN and (not dot or head == "plan"):
        return f"plan.{bare}"
    if bare in MODEL and (bare == key or head == "model"):
        return f"model.{bare}"
    if head == "machine" and rest.partition(".")[0] in TABLES:
        return key
    if head in TABLES:
        return f"machine.{key}"
    known = (*PLAIN, *PLAN, *MODEL)
    ours = PLAN_WORDS.get(plain(bare)) or MODEL_WORDS.get(plain(bare))
    near = [ours] if ours else difflib.get_close_matches(bare, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}, or a machine's key"
    raise StudyError(f"unknown key {key!r}; {hint}")


def value(key: str, given: Any) -> Any:
    """The value of a key with its full name, in its kind; a machine's key is looked at later."""
    head, _, rest = key.partition(".")
    if isinstance(given, dict) and key != "plan":
        raise StudyError(f"{key} = {given} is a table, but must be one value")
    if head == "plan":
        return _plan(given) if key == "plan" else _plan_value(rest, given)
    if key in ("devices", "batch"):
        return _count(key, given)
    if key == "batch_tokens":
        return batch_tokens_of(given)
    if key == "tokens":
        return tokens_of(given)
    if head == "model" and rest:
        return _field(rest, given)
    if head == "machine" and rest:
        return given
    if not isinstance(given, str) or not given:
        raise StudyError(f"{key} = {given} must be text, as in {key} = {_EXAMPLES[key]}")
    if key == "placement":
        check_placement(given)
    return given


def check_once(key: str, values: Sequence[Any]) -> None:
    """A StudyError if one of a key's values stands twice, which would be predicted twice."""
    seen = set()
    for each in values:
        known = str(each) if isinstance(each, list) else each
        if known in seen:
            raise StudyError(f"{key} has {each} twice")
        seen.add(known)


_EXAMPLES = {
    "model": '"gpt-80b"',
    "machine": '"frontier"',
    "placement": '"scheduler"',
    "stack": '"megatron-core"',
    "routing": '"routing.json"',
}


def plan_of(point: Mapping[str, Any]) -> dict[str, Any]:
    """The plan's keys of a point: its plan, and over it the keys that it gives one by one."""
    return {**plan_words(point.get("plan", "dp=rest")), **keys_of(point, "plan")}


def keys_of(point: Mapping[str, Any], head: str) -> dict[str, Any]:
    """What a point sets of its `plan`, its `model` or its `machine`, key by key."""
    prefix = f"{head}."
    return {key.removeprefix(prefix): v for key, v in point.items() if key.startswith(prefix)}


def ordered(point: Mapping[str, Any]) -> Point:
    """The point with its keys in the one order that rows have."""
    order = {head: number for number, head in enumerate(PLAIN)}
    return {
        key: point[key] for key in sorted(point, key=lambda key: (order[key.split(".")[0]], key))
    }


def _plan(given: Any) -> str:
    if isinstance(given, dict):
        given = ",".join(f"{key}={text_of(item)}" for key, item in given.items())
    if given == BEST:
        return BEST
    if not isinstance(given, str):
        raise StudyError(f'plan = {given} must be text, as in plan = "z=64,dp=rest"')
    for key, item in plan_words(given).items():
        _plan_value(key, item)
    return given


def _plan_value(key: str, given: Any) -> Any:
    if isinstance(given, float) and key not in REALS:
        raise StudyError(f"plan.{key} = {given} is not a plan's value")
    for word, named in recipe_words({key: given}).items():
        parsed = plan_value(word, named)
        if parsed != REST:
            check_value(word, parsed)
    parsed = plan_value(key, given)
    return text_of(parsed) if isinstance(parsed, tuple) else parsed


def _count(key: str, given: Any) -> int:
    try:
        number = int(given) if isinstance(given, str) else given
    except ValueError:
        number = None
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise StudyError(f"{key} = {given} must be a whole number of 1 or more")
    if number > MOST_COUNTED[key]:
        raise StudyError(f"{key} = {given} must be at most {MOST_COUNTED[key]:,}")
    return number


def _field(name: str, given: Any) -> Any:
    """A value of the model's own kind, from a number or its text."""
    try:
        return field_value(name, as_tokens(name, given))
    except ModelError as error:
        raise StudyError(f"model.{error}") from None
