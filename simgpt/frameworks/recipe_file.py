"""A recipe of a checkout of Megatron-Bridge or NeMo as settings, for `import --recipe`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simgpt.frameworks.files import BRIDGE, NEMO, Described
from simgpt.frameworks.reading import FrameworkError, Remark
from simgpt.frameworks.recipe_code.keys import OF_NEMO
from simgpt.frameworks.recipe_code.recipe import NEEDED, Recipe, named_recipe
from simgpt.frameworks.recipe_code.values import RecipeError
from topologies.errors import SimgptError
from workload.gpt import find_model

LAYOUT = "pipeline_model_parallel_layout"
LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}  # as Megatron-Core reads them
NO_PART = ("env_vars",)  # of what surrounds the process
UNTOLD = "the recipe's text does not determine it"


OVERLAP = "trainer.callbacks.MegatronCommOverlapCallback."
TOKENIZERS = ("data.tokenizer", "model.tokenizer")
OF_MODEL = {"sequence": "model.seq_length", "mtp_layers": "model.mtp_num_layers"}


def read_recipe(
    folder: Path, name: str, devices: int | None
) -> tuple[Described, str | None, dict[str, Any]]:
    """The settings of a recipe of a checkout; the preset of the model that it trains (None where
    none is known); and the preset's fields that the recipe sets to other values. Raises a
    FrameworkError where the recipe cannot be read."""
    try:
        found = named_recipe(folder, name, devices)
    except RecipeError as error:
        raise FrameworkError(str(error)) from None
    settings = {
        key: _meant(key, value)
        for key, value in found.settings.items()
        if not key.startswith(NO_PART) and value is not None
    }
    if found.key.layout in OF_NEMO:
        described = Described(NEMO, _of_nemo(settings), found.devices, _untold(found))
        return described, None, {}
    preset = _preset(found.model)
    described = Described(BRIDGE, settings, found.devices, _untold(found))
    return described, preset, _otherwise(preset, found) if preset else {}


def _of_nemo(settings: dict[str, Any]) -> dict[str, Any]:
    """A recipe of NeMo under the names of its YAML: what a callback says of overlap stands in a
    section of its own, and the vocabulary is that of the tokenizer, where that names a size or a
    checkpoint that is known."""
    found = {
        f"comm_overlap.{name.removeprefix(OVERLAP)}" if name.startswith(OVERLAP) else name: value
        for name, value in settings.items()
    }
    if found.get("trainer.strategy.fsdp") == "megatron":
        del found["trainer.strategy.fsdp"]
        found["ddp.use_megatron_fsdp"] = True
    for tokenizer in TOKENIZERS:
        preset = _preset(str(found.get(f"{tokenizer}.pretrained_model_name", "")))
        size = found.get(f"{tokenizer}.vocab_size")
        size = find_model(preset).vocab if size is None and preset else size
        if isinstance(size, int):
            found.setdefault("model.vocab_size", size)
    return found


def _otherwise(preset: str, recipe: Recipe) -> dict[str, Any]:
    """Fields that the recipe sets to something else than the preset has."""
    gpt = find_model(preset)
    told = {field: recipe.get(name) for field, name in OF_MODEL.items()}
    return {
        field: value
        for field, value in told.items()
        if isinstance(value, int) and value != gpt.value(field)
    }


def _meant(name: str, value: Any) -> Any:
    """A setting as its YAML has it: the layout of a pipeline in Megatron-Core's letters.

    >>> _meant(LAYOUT, [["embedding", "decoder"], ["decoder", "loss"]])
    'Et|tL'
    """
    if name.rpartition(".")[2] != LAYOUT or not isinstance(value, list):
        return value
    return "|".join("".join(LETTERS.get(part, "t") for part in chunk) for chunk in value)


def _untold(recipe: Recipe) -> tuple[Remark, ...]:
    """What bears on a step and cannot be told, each with its file and line."""
    needed = {own for name in NEEDED for own in recipe.own_names(name)}
    lines = [each for each in recipe.unresolved if each.name in needed]
    return tuple(Remark(each.name, f"{each.place}", UNTOLD) for each in lines)


def _preset(checkpoint: str) -> str | None:
    try:
        return find_model(checkpoint).name if checkpoint else None
    except SimgptError:
        return None
