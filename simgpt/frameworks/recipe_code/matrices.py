"""Recipes of Megatron-Bridge v0.1: a script with a YAML file of each model, which has a matrix of
plans by GPU, number of GPUs and precision.

scripts/performance/run_script.py builds the recipe in `main`, merges the YAML into it and calls
`pretrain`; here its `main` is evaluated with the words that a user gives, and what `pretrain` is
given is the recipe. Source: run_script.py and utils/helpers.py of NVIDIA-NeMo/Megatron-Bridge
v0.1.0rc4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from simgpt.frameworks.overrides import merged
from simgpt.frameworks.recipe_code.checkout import Checkout
from simgpt.frameworks.recipe_code.evaluation import Evaluation
from simgpt.frameworks.recipe_code.values import Builtin, Module, Place, RecipeError, Thing
from topologies.files.reading import UserFile

FILE = UserFile("matrix of plans", RecipeError)
SCRIPT, HELPERS = "run_script", "utils.helpers"
PRECISIONS = ("bf16", "fp8_cs", "fp8_mx", "fp8_ds", "fp8_ss")
_FILE = re.compile(r"(?P<model>\w+?)_llm_pretrain\.yaml")
_DEVICES = re.compile(r"num_gpus_(\d{1,6})")
_WORDS = {"true": True, "false": False, "null": None, "": None, "none": None}


def plans_of(checkout: Checkout, base: Path) -> Iterator[tuple[str, str, str, int, str]]:
    """The model, GPU, precision, number of GPUs and file of each plan in the YAML files."""
    for path in sorted(base.glob("*/*.yaml"))[:200]:
        match = _FILE.fullmatch(path.parts[-1])
        matrix = document_of(checkout, path).get("perf_matrix") if match else None
        for gpu, sizes in (matrix or {}).items():
            for count, plans in (sizes or {}).items():
                if (devices := _DEVICES.fullmatch(count)) and isinstance(plans, Mapping) and match:
                    for precision in [each for each in PRECISIONS if each in plans]:
                        shown = checkout.shown(path)
                        yield match["model"], gpu, precision, int(devices[1]), shown


def document_of(checkout: Checkout, path: Path) -> dict[str, Any]:
    """A YAML file of the checkout with its words as values."""
    from topologies.files.yaml_text import yaml_texts

    found = _typed(yaml_texts(FILE, FILE.text(path), checkout.shown(path)))
    return found if isinstance(found, dict) else {}


def _typed(value: Any) -> Any:
    """Texts of YAML as what they mean.

    >>> _typed({"a": "4", "b": "null", "c": ["true", "x"]})
    {'a': 4, 'b': None, 'c': [True, 'x']}
    """
    if isinstance(value, dict):
        return {key: _typed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_typed(each) for each in value]
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    return int(value) if re.fullmatch(r"-?\d{1,18}", value) else value


def evaluated_script(
    ev: Evaluation, model: str, gpu: str, precision: str, devices: int, file: str
) -> Thing:
    """The configuration that the script's `main` gives `pretrain`."""
    name, _, size = model.partition("_")
    dtype, _, scaling = precision.partition("_")
    words = {"model_name": name, "model_size": size, "gpu": gpu, "num_gpus": devices}
    words |= {"compute_dtype": dtype, "fp8_recipe": scaling or "ds", "use_tokendrop": None}
    words |= {"config_file": file, "gpus_per_node": None, "max_steps": None}
    arguments = Thing("the script's words", Place(SCRIPT, 0), words)
    taken: list[Any] = []
    _bind(ev, arguments, ev.checkout.folder / file, taken)
    place = Place(SCRIPT, 0)
    ev.call(ev.attribute(ev.module(SCRIPT), "main", place), [], {}, place)
    if not taken or not isinstance(taken[0], Thing):
        raise RecipeError(f"{SCRIPT}.py gives pretrain no configuration")
    return taken[0]


def _bind(ev: Evaluation, arguments: Thing, file: Path, taken: list[Any]) -> None:
    """Give the script's modules what it has from the command line and from OmegaConf."""
    document = document_of(ev.checkout, file)

    def configuration(name: str, call: Any) -> tuple[str, Builtin]:
        return name, Builtin(name, lambda place, given, named: call(*given))

    def merge(*values: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        return reduce(merged, (each for each in values if isinstance(each, dict)), found)

    conf = Thing("OmegaConf", Place(SCRIPT, 0))
    conf.fields |= dict(
        configuration(name, call)
        for name, call in {
            "load": lambda path: document,
            "is_dict": lambda value: isinstance(value, dict),
            "create": lambda value: value,
            "merge": merge,
            "to_container": lambda value: value,
        }.items()
    )
    exists = Builtin("exists", lambda p, a, k: True)
    path = Thing("os.path", Place(SCRIPT, 0), {"exists": exists})
    own: dict[str, Any] = {
        "OmegaConf": conf,
        "parse_cli_args": Builtin("parse", lambda p, a, k: (arguments, [])),
        "create_omegaconf_dict_config": Builtin("create", lambda p, a, k: ({}, {})),
        "apply_overrides": Builtin("apply", lambda p, a, k: _apply(ev, a[0], a[1], 0)),
        "pretrain": Builtin("pretrain", lambda p, a, k: taken.append(k.get("config"))),
        "os": Thing("os", Place(SCRIPT, 0), {"path": path}),
    }
    for name in (SCRIPT, HELPERS):
        module = ev.module(name)
        if not isinstance(module, Module):
            raise RecipeError(f"the checkout has no module {name}")
        module.variables.update({key: own[key] for key in own if key in module.variables})


def _apply(ev: Evaluation, thing: Any, table: Any, depth: int) -> None:
    """Set an object's attributes, and those of objects within it, as a table has them."""
    if not isinstance(thing, Thing) or not isinstance(table, dict) or depth > 4:
        return
    for name, value in table.items():
        inner = thing.fields.get(name)
        if isinstance(value, dict) and isinstance(inner, Thing):
            _apply(ev, inner, value, depth + 1)
        else:
            ev.write(thing.fields, name, value)
