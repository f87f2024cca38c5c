"""Where the releases of Megatron-Bridge keep their performance recipes, and how one is called.

- `variants` (v0.3.0 to v0.5.1): scripts/performance/configs/FAMILY defines MODEL_TASK_config_GPU
  with the arguments precision and config_variant, and constants MODEL_TASK_CONFIG_GPU_DTYPE_VARIANT
  with the plan; utils/overrides.py, set_post_overrides, adds what depends on the number of GPUs.
- `sizes` (v0.2.0 to v0.2.2): scripts/performance/configs/MODEL defines MODEL_SIZE_GPU_config, with
  constants MODEL_SIZE_GPU_DTYPE_BASE_CONFIG; utils/helpers.py adds the rest.
- `matrices` (v0.1.0): one script, with YAML files of plans (matrices.py).
- `flat` (v0.6.0): src/megatron/bridge/perf_recipes defines MODEL_TASK_NUMBERgpu_GPU_DTYPE_config.
- `script` and `factory` are NeMo 2's (nemo.py).

Source: scripts/performance/utils/utils.py and run_script.py of NVIDIA-NeMo/Megatron-Bridge at these
tags.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from simgpt.frameworks.recipe_code.checkout import Checkout
from simgpt.frameworks.recipe_code.evaluator import Evaluator, evaluated_call, guarded
from simgpt.frameworks.recipe_code.keys import (
    FACTORY,
    FLAT,
    MATRICES,
    SCRIPT,
    SIZES,
    VARIANTS,
    RecipeKey,
)
from simgpt.frameworks.recipe_code.matrices import SCRIPT as MAIN
from simgpt.frameworks.recipe_code.matrices import evaluated_script, plans_of
from simgpt.frameworks.recipe_code.nemo import RECIPES, evaluated_factory, recipes_of_nemo
from simgpt.frameworks.recipe_code.nemo import evaluated_script as script_of_nemo
from simgpt.frameworks.recipe_code.values import Place, RecipeError, Thing, unknown
from topologies.files.printable import shown

GPUS = ("h100", "b200", "b300", "gb200", "gb300", "vr200", "r100")
PRECISIONS = ("bf16", "fp8_cs", "fp8_mx", "fp8_sc", "fp8_ds", "nvfp4")
SPELLED = {each.replace("_", ""): each for each in PRECISIONS}  # as flat recipes have them
TASKS = ("pretrain", "sft", "lora", "peft", "finetune")
MOST_FILES = 2000
_GPU, _TASK = "|".join(GPUS), "|".join(TASKS)
_DTYPE = "|".join(PRECISIONS)
_FLAT = re.compile(
    rf"(?P<model>\w+?)_(?P<task>{_TASK})_(?P<devices>\d+)gpu_(?P<gpu>{_GPU})_"
    rf"(?P<precision>{'|'.join(SPELLED)})(?:_(?P<variant>\w+))?_config"
)
_VARIANT = re.compile(
    rf"(?P<model>\w+?)_(?P<task>{_TASK})_config_(?P<gpu>{_GPU})_(?P<precision>{_DTYPE})"
    r"(?:_(?P<variant>\w+))?"
)
_SIZE = re.compile(
    rf"(?P<model>\w+?)_(?P<gpu>{_GPU})(?:_(?P<task>{_TASK}))?_(?P<precision>{_DTYPE})_base_config"
)
BASE = "scripts/performance/configs"
PERF = "src/megatron/bridge/perf_recipes"


def recipes_of(checkout: Checkout) -> tuple[RecipeKey, ...]:
    """All performance recipes of a checkout; a RecipeError says that it has none."""
    if (checkout.folder / PERF).is_dir():
        found = list(_flat(checkout))
    elif (checkout.folder / BASE).is_dir():
        found = list(_of_scripts(checkout)) or list(_of_matrices(checkout))
    else:
        found = list(recipes_of_nemo(checkout))
    if not found:
        raise RecipeError(
            f"{shown(checkout.folder.name)} has no performance recipes: neither {PERF} of "
            f"Megatron-Bridge v0.6 nor {BASE} of v0.1 to v0.5, nor scripts or {RECIPES} of NeMo 2"
        )
    return tuple(found)


def _python(folder: Path) -> Iterator[Path]:
    for number, path in enumerate(sorted(folder.rglob("*.py"))):
        if number >= MOST_FILES:
            raise RecipeError(f"{folder.name} has more than {MOST_FILES:,} files")
        yield path


def _flat(checkout: Checkout) -> Iterator[RecipeKey]:
    for path in _python(checkout.folder / PERF):
        module = _dotted(path.relative_to(checkout.folder / "src"))
        for node in checkout.tree(path).body:
            match = _FLAT.fullmatch(node.name) if isinstance(node, ast.FunctionDef) else None
            if match and isinstance(node, ast.FunctionDef):
                yield RecipeKey(
                    FLAT,
                    match["model"],
                    match["task"],
                    match["gpu"],
                    SPELLED[match["precision"]],
                    match["variant"] or "",
                    int(match["devices"]),
                    module,
                    node.name,
                )


def _of_scripts(checkout: Checkout) -> Iterator[RecipeKey]:
    for folder in sorted((checkout.folder / BASE).iterdir()):
        if not folder.is_dir():
            continue
        functions: dict[str, str] = {}
        constants: dict[str, str] = {}
        for path in _python(folder):
            module = _dotted(path.relative_to(checkout.folder / "scripts/performance"))
            for node in checkout.tree(path).body:
                if isinstance(node, ast.FunctionDef):
                    functions[node.name] = module
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    constants[node.targets[0].id] = module
        yield from _matched(functions, constants)


def _matched(functions: dict[str, str], constants: dict[str, str]) -> Iterator[RecipeKey]:
    for constant, defined in constants.items():
        for layout, pattern in ((VARIANTS, _VARIANT), (SIZES, _SIZE)):
            match = pattern.fullmatch(constant.lower())
            if not match:
                continue
            model, gpu, task = match["model"], match["gpu"], match["task"] or "pretrain"
            function = f"{model}_{task}_config_{gpu}"
            if layout == SIZES:
                function = (
                    f"{model}_{gpu}_config"
                    if not match["task"]
                    else (f"{model}_{gpu}_{task}_config")
                )
            if function in functions:
                variant = match["variant"] or "" if layout == VARIANTS else ""
                yield RecipeKey(
                    layout,
                    model,
                    task,
                    gpu,
                    match["precision"],
                    variant,
                    0,
                    functions[function],
                    function,
                    f"{defined}:{constant}",
                )


def _of_matrices(checkout: Checkout) -> Iterator[RecipeKey]:
    for model, gpu, precision, devices, file in plans_of(checkout, checkout.folder / BASE):
        yield RecipeKey(
            MATRICES, model, "pretrain", gpu, precision, "", devices, MAIN, "main", file
        )


def _dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts)


def evaluated(
    ev: Evaluator, key: RecipeKey, devices: int | None, command: Sequence[str] = ()
) -> tuple[Thing, int]:
    """The recipe's configuration, and on how many devices it runs: those that are asked for, or
    else its own; `command` is a script's command line."""
    if key.layout == FLAT:
        found = evaluated_call(ev, key.module, key.function, [], {})
        return _thing(found, key), devices or key.devices
    if key.layout == SCRIPT:
        count = devices or key.devices
        return script_of_nemo(ev, key, count, command), count
    if key.layout == FACTORY:
        return evaluated_factory(ev, key, devices)
    if key.layout == MATRICES:
        count = devices or key.devices
        given_to = (key.model, key.gpu, key.precision, count, key.constant)
        return guarded(lambda: evaluated_script(ev, *given_to), MAIN), count
    own = _own_devices(ev, key)
    count = devices or own
    given = {"precision": key.precision}
    if key.layout == VARIANTS:
        given |= {"config_variant": key.variant} if key.variant else {}
        found = evaluated_call(ev, key.module, key.function, [], given)
        return _after_variants(ev, key, _thing(found, key), count), count
    found = evaluated_call(ev, key.module, key.function, [], given)
    return _after_sizes(ev, key, _thing(found, key), count, own), count


def _thing(found: object, key: RecipeKey) -> Thing:
    if not isinstance(found, Thing):
        raise RecipeError(f"{key.function} gives no configuration")
    return found


def _own_devices(ev: Evaluator, key: RecipeKey) -> int:
    module, _, constant = key.constant.partition(":")
    place = Place(module, 0)
    plan = ev.attribute(ev.module(module), constant, place)
    found = ev.attribute(plan, "num_gpus", place)
    if not isinstance(found, int):
        raise RecipeError(f"{constant} does not say its number of GPUs")
    return found


def _after_variants(ev: Evaluator, key: RecipeKey, recipe: Thing, devices: int) -> Thing:
    """What the launcher adds behind the recipe and the options of a user, who gives none."""
    family = key.module.split(".")[1]
    given = [recipe, family, key.model, key.gpu, devices, key.precision, key.task]
    named = {"user_gbs": None} | ({"config_variant": key.variant} if key.variant else {})
    evaluated_call(ev, "utils.overrides", "set_post_overrides", given, named)
    return recipe


def _after_sizes(ev: Evaluator, key: RecipeKey, recipe: Thing, devices: int, own: int) -> Thing:
    evaluated_call(ev, "utils.helpers", "set_common_perf_overrides", [recipe], {})
    options = {"compute_dtype": key.precision, "num_gpus": devices}
    evaluated_call(ev, "utils.helpers", "set_user_overrides", [recipe, options], {})
    train, place = recipe.fields.get("train"), Place("utils.helpers", 0)
    if devices != own and isinstance(train, Thing):
        batch = train.fields.get("global_batch_size")
        scaled = int(batch / own * devices) if isinstance(batch, int) else unknown("batch", place)
        train.fields["global_batch_size"] = scaled
    return recipe
