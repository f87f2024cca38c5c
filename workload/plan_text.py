"""Reading a plan: from `x=2,data=4` on a command line, or from a table of the same keys."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import fields
from math import prod
from typing import Any

from topologies.errors import SimgptError
from workload.errors import PlanCannotRunError, PlanError, RestError
from workload.grid import AXES, SHARDS
from workload.passes.table import EVERY, OVERLAPS
from workload.pipeline.layout import is_layout, layout_of
from workload.pipeline.schedule import ways
from workload.plan import Plan, text_of
from workload.recipes.table import check_fp8, recipe_words
from workload.splits.foreign_words import MODEL_WORDS, plain, plan_word
from workload.splits.plan_values import MOST

REST = "rest"
_LISTS = {"overlap": "oar+ors", "stage_layers": "6+6+5"}
KEYS = tuple(field.name for field in fields(Plan))
ALIASES = {  # the words of Megatron-LM, NeMo, torchtitan and DeepSpeed
    "tp": "x",
    "cp": "context",
    "pp": "pipe",
    "dp": "data",
    "vpp": "interleave",
    "mbs": "micro_batch",
    "gbs": "batch",
    "sp": "sequence_parallel",
    "ep": "expert",
    "etp": "expert_tensor",
    "layout": "stage_layers",
}
SHARDED = ("fsdp", "hsdp")
_REAL = re.compile(r"[0-9]{0,3}\.?[0-9]{1,20}(e-[0-9]{1,2})?")
WHOLE = 3  # the stage of ZeRO in which parameters are sharded, too
_TYPES = {field.name: str(field.type) for field in fields(Plan)}
REALS = tuple(key for key, kind in _TYPES.items() if kind == "float")


def parse_plan(
    text: str | Mapping[str, Any], *, devices: int | None = None, batch: int | None = None
) -> Plan:
    """Read a plan from its text (`x=2,y=2,data=rest`) or from a table of the same keys.

    `devices` is what `data=rest` fills, and must equal the plan's ranks where both are given.
    Without a batch anywhere, a step is one micro-batch per rank; without `micro_batch`, a rank runs
    its whole share at once.
    """
    given = plan_words(text)
    check_fp8(given)
    values = {key: plan_value(key, value) for key, value in given.items()}
    _fill_rest(values, devices)
    if batch is not None and values.setdefault("batch", batch) != batch:
        raise PlanError(f"the plan says batch={values['batch']}, the command batch={batch}")
    cells = prod(values.get(axis, 1) for axis in SHARDS["sequences"])
    cells *= ways(values.get("schedule", ""))
    if "batch" not in values:
        values["batch"] = cells * values.get("micro_batch", 1)
    if "micro_batch" not in values:
        values["micro_batch"] = max(values["batch"] // max(cells, 1), 1)
    ranks = prod(values.get(axis, 1) for axis in AXES)
    try:
        plan = Plan(**values)
    except PlanCannotRunError:
        _check_ranks(ranks, devices)  # what else is wrong may follow from too few
        raise
    _check_ranks(ranks, devices)
    return plan


def _check_ranks(ranks: int, devices: int | None) -> None:
    if devices not in (None, ranks):
        several = "1 rank" if ranks == 1 else f"{ranks} ranks"
        raise PlanCannotRunError(
            f"the plan's axes multiply to {several}, not to {devices} devices; "
            "one axis may be given as data=rest"
        )


def parse_fields(text: str | Mapping[str, Any]) -> dict[str, Any]:
    """Read some of a plan's fields, without a plan to check them: `pipe=1,zero=1`, or a table."""
    given = plan_words(text)
    return {key: plan_value(key, value) for key, value in given.items()}


def split_plan(text: str) -> dict[str, str]:
    """The words of a plan's text by key, not yet looked at.

    >>> split_plan("x=2,data=rest")
    {'x': '2', 'data': 'rest'}
    """
    return split_words(text, "plan", "x=2,data=4", PlanError)


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
    {'x': '4', 'pipe': '2', 'data': 'rest', 'zero': 3, 'shard': '8'}
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
    layers, pipe = layout_of(str(layout)).layers, str(words.get("pipe", 1))
    found = words | {"stage_layers": "+".join(map(str, layers))}
    if pipe.isdecimal() and 0 < int(pipe) < len(layers) and len(layers) % int(pipe) == 0:
        found.setdefault("interleave", len(layers) // int(pipe))
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
        if plain(key) in MODEL_WORDS or plain(key) in MODEL_WORDS.values():
            field = MODEL_WORDS.get(plain(key), plain(key))
            raise PlanError(f"{key!r} is none of the plan but of the model: {field}={value}")
        known = (*_TYPES, *ALIASES, *SHARDED)
        begun = [word for word in known if len(word) > len("etp") and key.startswith(word)]
        near = begun[:1] or difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(_TYPES)}"
        raise PlanError(f"unknown plan key {key!r}; {hint}")
    if key in ("overlap", "stage_layers") and not isinstance(value, str | list | tuple):
        raise PlanError(f"{key}={value} must be text or a list, as in {_LISTS[key]}")
    if key == "overlap":
        return _overlap(value)
    if key == "stage_layers":
        words = value.split("+") if isinstance(value, str) else value
        return () if words == ["none"] else tuple(_number(key, word) for word in words)
    if _TYPES[key] == "str":
        return str(value)
    if _TYPES[key] == "bool":
        return _switch(key, value)
    if _TYPES[key] == "float":
        return _real(key, value)
    return REST if key == "data" and value == REST else _number(key, value)


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


def _fill_rest(values: dict[str, Any], devices: int | None) -> None:
    if values.get("data") != REST:
        return
    unsaid = {"data"} | ({"context"} - {*values})
    others = [axis for axis in AXES if axis not in unsaid]
    inner = prod(max(values.get(axis, 1), 1) for axis in others)
    if devices is None:
        instead = ", or say data=8" if inner == 1 else ""
        raise RestError(f"data=rest fills a number of devices: give it (-n){instead}")
    if devices % inner:
        raise PlanCannotRunError(
            f"{'*'.join(others)}={inner} does not divide {devices} devices, so data=rest cannot "
            "fill"
        )
    values["data"] = devices // inner
