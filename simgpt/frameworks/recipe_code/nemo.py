"""Recipes of NeMo 2: scripts that give nemo_run a recipe, and factories.

- A script (scripts/llm/performance of v2.2, scripts/performance of v2.3 on) has a block for
  `__main__` that asks for the plan of a task, a model and a size, which a CSV table has for a GPU,
  a data type and a number of GPUs, and adds a recipe to an experiment. That block is evaluated with
  the words that a user gives, and what it adds is the recipe.
- A factory (nemo/collections/llm/recipes of v2.0 on) is a function under
  `run.cli.factory(target=…)`, which returns a recipe.

What the recipe's callbacks set of the model when training begins is theirs to say: the `setup` of
each is evaluated too. Source: NVIDIA/NeMo v2.0.0 to v2.5.0rc0, the folders above,
nemo/lightning/pytorch/callbacks and strategies/megatron_strategy.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from simgpt.frameworks.recipe_code.checkout import Checkout
from simgpt.frameworks.recipe_code.evaluator import Evaluator, evaluated_call, guarded
from simgpt.frameworks.recipe_code.keys import FACTORY, SCRIPT, RecipeKey
from simgpt.frameworks.recipe_code.tables import rows_of
from simgpt.frameworks.recipe_code.values import (
    Class,
    External,
    Place,
    RaisedError,
    RecipeError,
    Thing,
)

SCRIPTS, RECIPES = "scripts", "nemo/collections/llm/recipes"
TABLE_COLUMNS = {"task", "model", "size", "dtype", "num_gpus"}
TASKS = {"pre_train": "pretrain", "sft": "sft", "lora": "lora"}
PERFORMANCE = "performance"
MOST_SCRIPTS = 3000
NODE = 8  # GPUs, where a factory does not say
# Where NeMo has what Megatron-Bridge's recipes have in a section: the strategy's word comes before
# the model's (MegatronStrategy.connect).
SECTIONS = {
    "model": ("trainer.strategy", "model.config"),
    "train": ("data",),
    "optimizer": ("optim.config",),
    "mixed_precision": ("trainer.plugins",),
    "ddp": ("trainer.strategy.ddp",),
    "comm_overlap": ("trainer.callbacks.MegatronCommOverlapCallback",),
    "strategy": ("trainer.strategy",),
}
OTHERS = {"model.seq_length": ("data.seq_length", "model.config.seq_length")}


def own_names(name: str) -> tuple[str, ...]:
    """The names that NeMo has for a setting of Megatron-Bridge's recipes.

    >>> own_names("ddp.nccl_ub"), own_names("model.seq_length")[0]
    (('trainer.strategy.ddp.nccl_ub',), 'data.seq_length')
    """
    section, _, leaf = name.partition(".")
    return OTHERS.get(name) or tuple(f"{own}.{leaf}" for own in SECTIONS.get(section, (section,)))


def recipes_of_nemo(checkout: Checkout) -> Iterator[RecipeKey]:
    """All recipes of a checkout of NeMo."""
    yield from _of_scripts(checkout)
    for path in sorted((checkout.folder / RECIPES).glob("*.py"))[:MOST_SCRIPTS]:
        yield from _of_factories(checkout, path)


def _of_scripts(checkout: Checkout) -> Iterator[RecipeKey]:
    """A recipe for each plan that a script asks for; of several scripts that ask for one plan all
    but the one with the shortest name say which they are."""
    folder = checkout.folder / SCRIPTS
    plans = list(_plans(checkout, folder)) if folder.is_dir() else []
    known: set[tuple[str, str, str]] = set()
    paths = sorted(folder.rglob("*.py"), key=lambda each: (len(each.name), each.name))
    for path in paths[:MOST_SCRIPTS] if plans else ():
        is_script = checkout.mentions(path, "__main__")
        asked = set(_asked(checkout.tree(path))) if is_script else set()
        for task, model, size, gpu, dtype, devices in plans:
            if (task, model, size) in asked:
                yield RecipeKey(
                    SCRIPT,
                    f"{model}_{size}",
                    TASKS[task],
                    gpu,
                    dtype,
                    path.stem if (task, model, size) in known else "",
                    devices,
                    ".".join(path.relative_to(checkout.folder).with_suffix("").parts),
                    "__main__",
                )
        known |= asked


def _plans(checkout: Checkout, folder: Path) -> Iterator[tuple[str, str, str, str, str, int]]:
    """The task, model, size, GPU, data type and devices of each row of the tables of plans. Scripts
    find a GPU's table by its name, of which the GPU is the last word; of several the one with the
    shortest name is theirs, as the others are of other studies."""
    tables: dict[str, str] = {}
    for path in sorted(folder.rglob("*.csv"), key=lambda each: (len(each.name), each.name))[:100]:
        shown = checkout.shown(path)
        rows = rows_of(checkout, shown) or []
        if rows and rows[0].keys() >= TABLE_COLUMNS:
            tables.setdefault(path.stem.rpartition("_")[2], shown)
    found: dict[tuple[str, str, str, str, str, int], None] = {}
    for gpu, table in tables.items():
        for row in rows_of(checkout, table) or []:
            task, devices = str(row["task"]), row["num_gpus"]
            if task in TASKS and isinstance(devices, int | float):
                words = (str(row["model"]), str(row["size"]), gpu, str(row["dtype"]))
                found[(task, *words, int(devices))] = None
    yield from found


def _asked(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Three texts in a row that a call of the block for `__main__` is given."""
    for block in tree.body:
        if not (isinstance(block, ast.If) and _is_main(block.test)):
            continue
        for call in (each for each in ast.walk(block) if isinstance(each, ast.Call)):
            texts = [each.value if isinstance(each, ast.Constant) else None for each in call.args]
            for (one, two), (_, three) in pairwise(pairwise(texts)):
                if isinstance(one, str) and isinstance(two, str) and isinstance(three, str):
                    yield one, two, three


def _is_main(test: ast.expr) -> bool:
    names = [each for each in ast.walk(test) if isinstance(each, ast.Name)]
    texts = [each.value for each in ast.walk(test) if isinstance(each, ast.Constant)]
    return [each.id for each in names] == ["__name__"] and texts == ["__main__"]


def _of_factories(checkout: Checkout, path: Path) -> Iterator[RecipeKey]:
    module = ".".join(path.relative_to(checkout.folder).with_suffix("").parts)
    tree = checkout.tree(path)
    constants = {
        each.targets[0].id: each.value.value
        for each in tree.body
        if isinstance(each, ast.Assign)
        and isinstance(each.targets[0], ast.Name)
        and isinstance(each.value, ast.Constant)
    }
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        for target, name in _targets(node, constants):
            variants = [""] + [PERFORMANCE] * _takes(node, "performance_mode")
            for variant in variants:
                yield RecipeKey(FACTORY, name, target, "", "bf16", variant, 0, module, node.name)


def _targets(node: ast.FunctionDef, constants: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The target and name of each `factory(target=…, name=…)` above a function."""
    for each in node.decorator_list:
        if not isinstance(each, ast.Call) or getattr(each.func, "attr", "") != "factory":
            continue
        given = {word.arg: word.value for word in each.keywords}
        to, name = given.get("target"), given.get("name")
        text = constants.get(name.id) if isinstance(name, ast.Name) else None
        text = name.value if isinstance(name, ast.Constant) else text
        target = to.attr if isinstance(to, ast.Attribute) else getattr(to, "id", None)
        if isinstance(target, str) and isinstance(text, str):
            yield target, text


def _takes(node: ast.FunctionDef, name: str) -> bool:
    return name in [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]


def evaluated_script(
    ev: Evaluator, key: RecipeKey, devices: int, command: Sequence[str] = ()
) -> Thing:
    """The recipe that a script gives for a key's GPU, data type and devices, or for a command."""
    own = {"gpu": key.gpu, "compute_dtype": key.precision, "num_gpus": devices}
    ev.words, ev.command = ({}, command) if command else (own, ())
    ev.checkout = ev.checkout.before("/".join(key.module.split(".")[:-1]))
    found = guarded(lambda: ev.main(key.module), key.module)
    if isinstance(found, External):
        raise RecipeError(f"the checkout has no module {key.module}")
    if not ev.taken or not isinstance(ev.taken[0], Thing):
        raise RecipeError(f"{key.module} gives no recipe to run")
    _set_up(ev, ev.taken[0])
    return ev.taken[0]


def evaluated_factory(ev: Evaluator, key: RecipeKey, devices: int | None) -> tuple[Thing, int]:
    """The recipe that a factory gives, and on how many devices."""
    named: dict[str, Any] = {"performance_mode": True} if key.variant == PERFORMANCE else {}
    if devices is not None:
        named |= {"num_nodes": -(-devices // NODE), "num_gpus_per_node": min(devices, NODE)}
    found = evaluated_call(ev, key.module, key.function, [], named)
    if not isinstance(found, Thing):
        raise RecipeError(f"{key.function} of {key.module} gives no recipe")
    _set_up(ev, found)
    trainer, place = found.fields.get("trainer"), Place(key.module, 0)
    sizes = [ev.attribute(trainer, name, place) for name in ("num_nodes", "devices")]
    if not all(isinstance(each, int) for each in sizes):
        raise RecipeError(f"{key.name} does not say its number of GPUs")
    return found, sizes[0] * sizes[1]


def _set_up(ev: Evaluator, recipe: Thing) -> None:
    """Follow what callbacks do to the model when training begins, and then what the precision's
    plugin sets of the same names elsewhere (plugins/mixed_precision.py,
    update_config_with_dtype_overrides)."""
    trainer, model = recipe.fields.get("trainer"), recipe.fields.get("model")
    if not isinstance(trainer, Thing) or not isinstance(model, Thing):
        return
    config, optim = ev.attribute(model, "config", model.place), recipe.fields.get("optim")
    strategy, plugin = trainer.fields.get("strategy"), trainer.fields.get("plugins")
    inner = Thing("a model", model.place, {"config": config, "optim": optim})
    seen = Thing("the trainer", trainer.place, {"model": inner, "strategy": strategy})
    callbacks = trainer.fields.get("callbacks")
    for each in callbacks if isinstance(callbacks, list) else ():
        if isinstance(each, Thing) and isinstance(each.of, Class):
            _set_up_callback(ev, each, seen)
    ddp = strategy.fields.get("ddp") if isinstance(strategy, Thing) else None
    of_optimizer = optim.fields.get("config") if isinstance(optim, Thing) else None
    for target in (config, ddp, of_optimizer):
        if isinstance(target, Thing) and isinstance(plugin, Thing):
            for name in plugin.fields.keys() & target.fields.keys():
                ev.write(target.fields, name, plugin.fields[name])


def _set_up_callback(ev: Evaluator, callback: Thing, trainer: Thing) -> None:
    place = callback.place
    try:
        made = ev.call(callback.of, [], dict(callback.fields), place)
        setup = ev.attribute(made, "setup", place)
        if not isinstance(setup, Thing):
            ev.call(setup, [trainer, trainer.fields["model"], "fit"], {}, place)
    except RaisedError as error:
        ev.note(place, f"the setup of {callback.label} is left out: {error}")
