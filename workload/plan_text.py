"""Reading a plan: from `tp=2,dp=4` on a command line, or from a table of the same keys."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from math import prod
from typing import Any

from topologies.errors import SimgptError
from workload.errors import PlanCannotRunError, PlanError, RestError
from workload.gpt import GPT
from workload.grid import AXES, SHARDS, order_read
from workload.overlaps import EVERY, OVERLAPS
from workload.pipeline.layout import is_layout, layout_of
from workload.pipeline.schedule import ways
from workload.plan import Plan, in_axonn_words, text_of
from workload.plan_fields import KEYS as KEYS_OF_PLANS
from workload.recipes.table import recipe_words
from workload.splits.plan_values import MOST
from workload.words.foreign_words import MODEL_WORDS, plain, plan_word
from workload.words.former_words import FORMER_WORDS, key_now

REST = "rest"
_LISTS = {"overlap": "oar+ors", "stage_layers": "6+6+5"}
KEYS = tuple(KEYS_OF_PLANS)
ALIASES = {**FORMER_WORDS, "gbs": "batch", "layout": "stage_layers"}
SHARDED = ("fsdp", "hsdp")
_REAL = re.compile(r"[0-9]{0,3}\.?[0-9]{1,20}(e-[0-9]{1,2})?")
WHOLE = 3  # the stage of ZeRO in which parameters are sharded, too
_TYPES = {key: each.kind for key, each in KEYS_OF_PLANS.items()}
REALS = tuple(key for key, kind in _TYPES.items() if kind == "float")


def parse_plan(
    text: str | Mapping[str, Any], *, devices: int | None = None, batch: int | None = None
) -> Plan:
    """Read a plan from its text (`x=2,y=2,dp=rest`) or from a table of the same keys.

    `devices` is what `dp=rest` fills, and must equal the plan's ranks where both are given.
    Without a batch anywhere, a step is one micro-batch per rank; without `micro_batch`, a rank runs
    its whole share at once.
    """
    given = plan_words(text)
    values = {key: plan_value(key, value) for key, value in given.items()}
    _fill_rest(values, devices)
    if batch is not None and values.setdefault("batch", batch) != batch:
        raise PlanError(f"the plan says batch={values['batch']}, the command batch={batch}")
    cells = prod(values.get(axis, 1) for axis in SHARDS["sequences"])
    cells *= ways(values.get("schedule", ""))
    if "batch" not in values:
        values["batch"] = cells * values.get("mbs", 1)
    if "mbs" not in values:
        values["mbs"] = max(values["batch"] // max(cells, 1), 1)
    ranks = prod(values.get(axis, 1) for axis in AXES)
    try:
        plan = Plan.of(**values)
    except PlanCannotRunError:
        _check_ranks(ranks, devices)  # what else is wrong may follow from too few
        raise
    _check_ranks(ranks, devices)
    return plan


def _check_ranks(ranks: int, devices: int | None) -> None:
    if devices not in (None, ranks):
        several = "1 rank" if ranks == 1 else f"{ranks} ranks"
        raise PlanCannotRunError(
            f"the plan needs {several}, not {devices}; one axis may be given as dp=rest"
        )


def parse_fields(text: str | Mapping[str, Any]) -> dict[str, Any]:
    """Read some of a plan's fields, without a plan to check them: `pp=1,zero=1`, or a table."""
    given = plan_words(text)
    return {key: plan_value(key, value) for key, value in given.items()}


def plan_now(text: str) -> str:
    """A plan's text, as an answer of version 0.2 has it, as answers of today have it.

    >>> plan_now("x=4,y=1,z=1,data=2,pipe=16,micro_batch=1,order=x-y-z-pipe-data")
    'tp=4,pp=16,dp=2,mbs=1,order=tp-pp-dp'
    >>> plan_now("x=1,y=1,z=1,data=1,zero=1"), plan_now("x=2,y=1,z=8,data=4")
    ('dp=1,zero=1', 'x=2,z=8,dp=4')
    """
    given = [word.partition("=")[::2] for word in filter(None, text.split(","))]
    plan = {key_now(key): order_read(value) if key == "order" else value for key, value in given}
    split = {axis: size for axis in AXES if (size := plan.get(axis, "1")) != "1"}
    rest = {key: value for key, value in plan.items() if key not in AXES}
    words = {**(split or {"dp": "1"}), **rest}
    ordered = sorted(words, key=lambda key: KEYS.index(key) if key in KEYS else len(KEYS))
    found = ",".join(f"{key}={words[key]}" for key in ordered)
    return in_axonn_words(found) if {"y", "z"} & {*split} else found


def split_plan(text: str) -> dict[str, str]:
    """The words of a plan's text by key, not yet looked at.

    >>> split_plan("tp=2,dp=rest")
    {'tp': '2', 'dp': 'rest'}
    """
    return split_words(text, "plan", "tp=2,dp=4", PlanError)


def split_words(text: str, noun: str, example: str, error: type[SimgptError]) -> dict[str, str]:
    """The `key=value` words of a text, by key; an `error` names the noun and gives the example."""
    given: dict[str, str] = {}
    for word in filter(None, re.split(r"[,\s]+", text)):
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise error(f"cannot read {word!r} in the {noun}; write key=value, as in {example}")
        if key in given:
            raise error(f"{key} stands twice in the {noun}")
        given[key] = value
    return given


def plan_words(text: str | Mapping[str, Any]) -> dict[str, Any]:
    """A plan's values by our keys, given by these or by those of other frameworks, not yet looked
    at.

    >>> plan_words("tp=4,pp=2,dp=rest,hsdp=8")
    {'tp': '4', 'pp': '2', 'dp': 'rest', 'zero': 3, 'shard': '8'}
    """
    found: dict[str, Any] = {}
    said: dict[str, str] = {}
    given = text if isinstance(text, Mapping) else split_plan(text)
    for word, value in given.items():
        for key, own in _in_our_words(word, value).items():
            name = f"{word}={text_of(value)}"
            if key in found and not _agree(key, own, found[key]):
                raise PlanError(f"{said[key]} and {name} contradict each other: give one of them")
            found[key], said[key] = own, name
    if "fsdp" in given and "zero" in found and not _is_sharded(given["fsdp"], found["zero"]):
        named = f"fsdp={text_of(given['fsdp'])} and {said['zero']}"
        raise PlanError(f"{named} contradict each other: give one of them")
    return recipe_words(_layers_of_layout(found))


def _layers_of_layout(words: dict[str, Any]) -> dict[str, Any]:
    """The words with a layout of Megatron-LM's as layers of chunks, and these over the stages."""
    layout = words.get("stage_layers")
    if not is_layout(layout):
        return words
    layers, pp = layout_of(str(layout)).layers, str(words.get("pp", 1))
    found = words | {"stage_layers": "+".join(map(str, layers))}
    if pp.isdecimal() and 0 < int(pp) < len(layers) and len(layers) % int(pp) == 0:
        found.setdefault("vpp", len(layers) // int(pp))
    return found


def _agree(key: str, one: Any, other: Any) -> bool:
    """Whether two values of a key are the same."""
    if is_layout(one) or is_layout(other):
        return bool(one == other)
    return bool(plan_value(key, one) == plan_value(key, other))


def _is_sharded(fsdp: Any, zero: Any) -> bool:
    """Whether a stage of ZeRO is what `fsdp` says."""
    return _switch("fsdp", fsdp) is bool(plan_value("zero", zero) == WHOLE)


def _in_our_words(word: str, value: Any) -> dict[str, Any]:
    if word == "fsdp":
        return {"zero": WHOLE} if _switch(word, value) else {}
    if word == "hsdp":
        return {"zero": WHOLE, "shard": value}
    return {ALIASES.get(word, word): value}


def plan_value(key: str, value: Any) -> Any:
    """One key's value in its kind; whether it goes with the other keys, only a plan can tell."""
    if key not in _TYPES:
        if ours := plan_word(key, value):
            raise PlanError(f"unknown plan key {key!r}; did you mean {ours}?")
        field = MODEL_WORDS.get(plain(key), plain(key))
        if field in GPT.KEYS:
            raise PlanError(
                f"{key} is a key of the model, not of the plan; give --model-set {field}={value}"
            )
        known = (*_TYPES, *ALIASES, *SHARDED)
        begun = [word for word in known if len(word) > len("etp") and key.startswith(word)]
        near = (
            [key]
            if key in ALIASES
            else begun[:1] or difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        )
        hint = f"did you mean {key_now(near[0])}?" if near else f"known: {', '.join(_TYPES)}"
        raise PlanError(f"unknown plan key {key!r}; {hint}")
    if key in ("overlap", "stage_layers") and not isinstance(value, str | list | tuple):
        raise PlanError(f"{key}={value} must be text or a list, as in {_LISTS[key]}")
    if key == "overlap":
        return _overlap(value)
    if key == "stage_layers":
        words = value.split("+") if isinstance(value, str) else value
        return () if words == ["none"] else tuple(_number(key, word) for word in words)
    if key == "order":
        return order_read(str(value))
    if _TYPES[key] == "str":
        return str(value)
    if _TYPES[key] == "bool":
        return _switch(key, value)
    if _TYPES[key] == "float":
        return _real(key, value)
    return REST if key == "dp" and value == REST else _number(key, value)


def _number(key: str, value: Any) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise PlanError(f"{key}={value} must be a whole number") from None
    if abs(number) > MOST:
        raise PlanError(f"{key}={value} must be at most {MOST:,}")
    return number


def _real(key: str, value: Any) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, bool) or not _REAL.fullmatch(str(value)):
        raise PlanError(f"{key}={value} must be a number, as in {key}=0.5")
    return float(value)


def _switch(key: str, value: Any) -> bool:
    word = str(value).lower()
    if word not in ("true", "false"):
        raise PlanError(f"{key}={value} must be true or false")
    return word == "true"


def _overlap(value: Any) -> tuple[str, ...]:
    words = value.split("+") if isinstance(value, str) else [str(word) for word in value]
    if words == ["none"] or not words:
        return ()
    if "all" in words:
        words = [*OVERLAPS, *(word for word in words if word != "all")]
    for word in words:
        if word not in EVERY:
            raise PlanError(
                f"overlap={word} is not supported; use all, none or some of {', '.join(EVERY)}"
            )
    return tuple(switch for switch in EVERY if switch in words)


def _sizes_that_do(sizes: dict[str, int], devices: int) -> str:
    """A hint at the nearest sizes of one axis with which all together divide the devices."""
    for axis, size in reversed(sizes.items()):
        left, rest = divmod(devices, prod(sizes.values()) // max(size, 1))
        if rest == 0 and left > 0:
            below = next(n for n in range(min(size, left), 0, -1) if left % n == 0)
            above = next((n for n in range(size, min(2 * size, left) + 1) if left % n == 0), 0)
            tried = [n for n in (below, above) if n]
            return f"; try {axis}={' or '.join(map(str, tried))}"
    return ""


def _fill_rest(values: dict[str, Any], devices: int | None) -> None:
    if values.get("dp") != REST:
        return
    others = [axis for axis in AXES if axis != "dp" and values.get(axis, 1) != 1]
    inner = prod(max(values.get(axis, 1), 1) for axis in others)
    if devices is None:
        instead = ", or say dp=8" if inner == 1 else ""
        raise RestError(f"dp=rest fills a number of devices: give it (-n){instead}")
    if devices % inner:
        sizes = {axis: values[axis] for axis in others}
        equals = " = " if len(others) > 1 else "="
        raise PlanCannotRunError(
            f"{' x '.join(others)}{equals}{inner} does not divide {devices} devices"
            f"{_sizes_that_do(sizes, devices)}"
        )
    values["dp"] = devices // inner
