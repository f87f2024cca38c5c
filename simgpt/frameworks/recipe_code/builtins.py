"""Functions that the evaluator knows: some of Python's own, and those of other modules of which
recipes need what they give.

Sources of the latter: `torch.cuda.get_device_properties` gives what is known of the device;
`AutoBridge.from_hf_pretrained(NAME).to_megatron_provider()` of Megatron-Bridge
(src/megatron/bridge/models/conversion/auto_bridge.py of v0.2.0 to v0.6.0) gives the model that a
checkpoint's configuration describes, of which `models` of the evaluator has facts by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simgpt.frameworks.recipe_code import paths
from simgpt.frameworks.recipe_code.argument_parsers import argument_parser
from simgpt.frameworks.recipe_code.core_defaults import OF_CHECKPOINTS
from simgpt.frameworks.recipe_code.evaluation import Evaluation
from simgpt.frameworks.recipe_code.tables import read_table
from simgpt.frameworks.recipe_code.values import (
    Builtin,
    Class,
    External,
    FieldSpec,
    FilePath,
    Function,
    Module,
    Place,
    RaisedError,
    Table,
    Thing,
    is_literal,
    unknown,
)

Call = Callable[[Evaluation, Place, list[Any], dict[str, Any]], Any]
MOST_COPIED = 20  # objects within each other
TYPES = {
    "str": str, "int": int, "float": float, "bool": bool, "list": list, "tuple": tuple,
    "dict": dict, "set": set,
}  # fmt: skip
# Fields of Megatron-Core's TransformerConfig, which the providers of all models have
# (megatron/core/transformer/transformer_config.py of core_v0.14.0 to core_v0.19.0); recipes that
# ask for a later one are of releases that have it (docs/releases/software-versions.md).
OF_EVERY_MODEL = (
    *("moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "apply_rope_fusion"),
    *("cross_entropy_fusion_impl", "cuda_graph_scope", "cuda_graph_impl", "recompute_modules"),
    *("use_transformer_engine_op_fuser", "cuda_graph_modules"),  # the latter of core_v0.18.0 on
)
CORE_BASES = {  # of transformer_config.py
    "TransformerConfig": ("ModelParallelConfig",),
    "MLATransformerConfig": ("TransformerConfig", "ModelParallelConfig"),
}


def known_external(name: str) -> Call | None:
    """The function for a name of a module outside of the checkout, None where none is known."""
    return _EXTERNAL.get(name)


def model_provider(ev: Evaluation, place: Place, name: str) -> Thing:
    """The model of a checkpoint: what the evaluator was given about it; all else is unknown."""
    ev.model_name = name
    found = unknown(f"the model {name}", place)
    found.kind = (OF_CHECKPOINTS,)
    found.fields.update(ev.models(name))
    return found


def _getattr(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    owner, name, *default = given
    if not isinstance(name, str):
        return unknown("an attribute whose name cannot be told", place)
    try:
        found = ev.attribute(owner, name, place)
    except RaisedError:
        if default:
            return default[0]
        raise
    missing = isinstance(found, Thing) and found.is_unknown
    if default and missing and isinstance(owner, Module | Class):
        return default[0]
    return found


def _hasattr(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    owner, name = given
    if isinstance(owner, Thing):
        if name in owner.fields and not _is_unset(owner.fields[name]):
            return True
        if name in OF_EVERY_MODEL and _is_model(ev, owner):
            return True
        if owner.cls and any(each.definition(name) for each in ev.classes(owner.cls)):
            return True
        if owner.is_config and ev.takes(owner, name):
            return True
        return unknown(f"whether {owner.label} has {name}", place)
    try:
        found = ev.attribute(owner, name, place)
    except RaisedError:
        return False
    return not (isinstance(found, Thing) and found.is_unknown)


def _is_model(ev: Evaluation, owner: Thing) -> bool:
    """Whether an object is a model's configuration: of a checkpoint, or of a class that derives
    from Megatron-Core's."""
    bases = ev.bases_outside(owner.cls) if owner.cls else []
    return OF_CHECKPOINTS in owner.kind or any(each in CORE_BASES for each in bases)


def _is_unset(value: Any) -> bool:
    return isinstance(value, Thing) and value.is_unknown and not value.fields


def _setattr(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> None:
    owner, name, value = given
    if isinstance(owner, Thing) and isinstance(name, str):
        ev.write(owner.fields, name, value)
    else:
        ev.note(place, "an attribute is set that cannot be told")


def _isinstance(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    value, kinds = given
    found = [_is_a(ev, value, each, place) for each in _kinds(kinds)]
    if True in found:
        return True
    return False if None not in found else unknown("the kind of a value", place)


def _kinds(kinds: Any) -> list[Any]:
    return (
        [each for kind in kinds for each in _kinds(kind)] if isinstance(kinds, tuple) else [kinds]
    )


def _is_a(ev: Evaluation, value: Any, kind: Any, place: Place) -> bool | None:
    if isinstance(value, Thing) and value.is_unknown:
        return None
    if isinstance(kind, Builtin) and kind.name in TYPES:
        return isinstance(value, TYPES[kind.name])
    if not isinstance(value, Thing):
        return False if isinstance(kind, Class) and is_literal(value) else None
    name = kind.name if isinstance(kind, Class) else getattr(kind, "last", "")
    own = [each.name for each in ev.classes(value.cls)] if value.cls else [value.label]
    own += ev.bases_outside(value.cls) if value.cls else []
    own += [base for each in own for base in CORE_BASES.get(each, ())]
    if name in own:
        return True
    return False if isinstance(kind, Class) and value.cls else None


def _replace(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    if not given or not isinstance(given[0], Thing):
        return unknown("a replace", place)
    old = given[0]
    return replace(old, place=place, fields={**old.fields, **named})


def _deepcopy(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    return _copied(given[0] if given else None, {}, 0)


def _copied(value: Any, seen: dict[Thing, Thing], depth: int) -> Any:
    if depth > MOST_COPIED:
        return value
    if isinstance(value, Thing):
        if value in seen:
            return seen[value]
        copy = seen[value] = replace(value, fields={})
        copy.fields.update({k: _copied(v, seen, depth + 1) for k, v in value.fields.items()})
        return copy
    if isinstance(value, list):
        return [_copied(each, seen, depth + 1) for each in value]
    if isinstance(value, dict):
        return {key: _copied(each, seen, depth + 1) for key, each in value.items()}
    return value


def _field(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    return FieldSpec(named)


def _import(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    if not given or not isinstance(given[0], str):
        return unknown("a module whose name cannot be told", place)
    found = ev.module(given[0])
    if isinstance(found, External):
        raise RaisedError(f"the checkout has no module {given[0]}")
    return found


def _device(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    if not ev.device:
        return unknown("the device", place)
    return Thing("the device", place, dict(ev.device))


def experiment(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Thing:
    """`nemo_run.Experiment(…)`, whose tasks are taken."""
    add = Builtin("add", lambda at, tasks, keys: ev.taken.extend(tasks[:1]))
    return Thing("an experiment", place, {"add": add})


def _pretrained(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    name = given[0] if given else named.get("path", named.get("hf_path"))
    if not isinstance(name, str):
        found = unknown("the model of a checkpoint", place)
        found.kind = (OF_CHECKPOINTS,)
        return found
    provider = Builtin("provider", lambda at, g, k: model_provider(ev, at, name))
    return Thing("a checkpoint", place, {"to_megatron_provider": provider})


def _plain(name: str, function: Callable[..., Any]) -> Call:
    """A function of Python's that takes literals and gives one."""

    def call(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
        values = [*given, *named.values()]
        if name == "len" and len(given) == 1 and isinstance(given[0], Table):
            return len(given[0].rows)
        if name in ("list", "tuple", "dict", "len", "sorted", "reversed", "enumerate", "zip"):
            known = not any(isinstance(each, Thing | External) for each in values)
        else:
            known = all(map(is_literal, values))
        if not known:
            return unknown(f"a {name}", place)
        try:
            return function(*given, **named)
        except (TypeError, ValueError, KeyError, OverflowError, ArithmeticError):
            raise RaisedError(f"{place}: {name} does not take its arguments") from None

    return call


def _range(*ends: int) -> list[int]:
    found = range(*ends)
    if len(found) > 10_000:
        raise ValueError("too long")
    return list(found)


def _bool(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    value = given[0] if given else False
    if isinstance(value, Thing) and value.is_unknown:
        return value
    return bool(value) if is_literal(value) else True


def _silent(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> None:
    """Functions that print."""


def _type(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    value = given[0] if given else None
    if isinstance(value, Thing) and value.cls:
        return value.cls
    return unknown("a type", place)


def _name_of(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    """`str` of literals; members of enumerations of other modules by their last part."""
    value = given[0] if given else ""
    if isinstance(value, str | int | float | bool | None):
        return str(value)
    if isinstance(value, External):
        return value.name
    return value.text if isinstance(value, FilePath) else unknown("a text", place)


def _partial(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    if not given or not isinstance(given[0], Function | Builtin | Class):
        return unknown("a partial", place)
    first, *before = given
    return Builtin(
        "partial", lambda at, more, own: ev.call(first, [*before, *more], {**named, **own}, at)
    )


_PLAIN: dict[str, Callable[..., Any]] = {
    **{"int": int, "float": float, "len": len, "min": min, "max": max, "sum": sum, "abs": abs},
    **{"round": round, "list": list, "tuple": tuple, "dict": dict, "set": set},
    **{"sorted": sorted, "any": any, "all": all, "range": _range},
    "enumerate": lambda *given: list(enumerate(*given)),
    "zip": lambda *given: list(zip(*given, strict=False)),
    "reversed": lambda each: list(reversed(each)),
}
BUILTINS: dict[str, Call] = {
    **{"getattr": _getattr, "hasattr": _hasattr, "setattr": _setattr, "isinstance": _isinstance},
    **{"bool": _bool, "str": _name_of, "print": _silent, "type": _type},
    **{name: _plain(name, function) for name, function in _PLAIN.items()},
}
_EXTERNAL: dict[str, Call] = {
    "dataclasses.replace": _replace,
    "dataclasses.field": _field,
    "copy.deepcopy": _deepcopy,
    "copy.copy": _deepcopy,
    "importlib.import_module": _import,
    **{"os.path.join": paths.join, "os.path.dirname": paths.folder, "pathlib.Path": paths.path},
    **dict.fromkeys(("os.path.isfile", "os.path.exists"), paths.is_file),
    **dict.fromkeys(("os.path.abspath", "os.path.realpath"), paths.same),
    "argparse.ArgumentParser": argument_parser,
    "pandas.read_csv": lambda ev, place, given, named: read_table(ev.checkout, given, place),
    "pandas.DataFrame": lambda ev, place, given, named: Table([]),
    "nemo_run.Experiment": experiment,
    "nemo_run.run": lambda ev, place, given, named: ev.taken.extend(given[:1]),
    "functools.partial": _partial,
    "math.ceil": _plain("math.ceil", math.ceil),
    "torch.cuda.get_device_properties": _device,
    "AutoBridge.from_hf_pretrained": _pretrained,  # a class of the checkout
}
