"""Recipes of Megatron-Bridge and NeMo: settings of Megatron-Core under names and sections of their
own, which `simgpt/frameworks/recipes.toml` holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from simgpt.frameworks.layers.patterns import MOST, pattern_of
from simgpt.frameworks.reading import text_of
from simgpt.frameworks.switches import switched_off
from topologies.files.reading import shipped_toml
from workload.errors import PlanCannotRunError

GATED = ("swiglu", "fast-swiglu", "silu")
OF_GELU = {
    "quick_gelu": "quick-geglu",
    "fast-geglu": "geglu",
    "reglu": "geglu",
    "fast-reglu": "geglu",
}
BRIDGE = "megatron-bridge"
PRECISIONS = ("mixed_precision", "precision")  # of Megatron-Bridge, and of NeMo
UNSAID, UNKNOWN = "precision-not-said", "precision-not-known"
NEWER = {"context_parallel_size", "num_moe_experts", "apply_rope_fusion"}  # keys of 23.11 and later
FULL = ("32", "fp32", "", "null", "none")
HALVES = {"bf16": "bf16", "fp16": "fp16", "16": "fp16"}
DISTRIBUTED = ("distributed_fused_adam", "mcore_distributed_optim")
SHARDED, UNSHARDED = "use-distributed-optimizer", "sharding-not-said"
OVERLAPS = ("overlap-grad-reduce", "overlap-param-gather")
EITHER = (SHARDED,)  # stands in two sections, and is on if it is in one
ACTIVATIONS, TARGET = ("activation", "activation_func"), "_target_"
# What a recipe has by the number of groups, and by its mixed precision.
ELSEWHERE = ("group-query-attention", "megatron-fsdp-main-grads-dtype")
PACKED = "packed_sequence_size"  # of a recipe's `packed_sequence_specs`; 0 or less: not packed
GATES = {"swiglu": "silu", "quick-geglu": "quick_gelu"}  # as recipes of Megatron-Bridge have them
OTHERS = "--stack nemo@24.05 is NeMo 23.07 to 24.05, nemo@23.05 before it, nemo after it"
CORE, WHOLE = "mcore_gpt", "apex_transformer_log_level"  # of NeMo's whole configurations
# PyTorch's in NeMo 1, of either name in NeMo 2 (nemo/lightning/pytorch/strategies).
FSDP = "fsdp"
OFF = re.compile(r"|-\d+|0+|null|none", re.IGNORECASE)


@cache
def _table() -> Mapping[str, Any]:
    return shipped_toml("simgpt", "frameworks/recipes.toml")


def arguments_of(settings: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Megatron-LM's arguments that a recipe's settings stand for, and the recipe's names of them.

    What bears on no step has its own name among the arguments, after a full stop.
    """
    table = _table()
    found: dict[str, str] = {}
    names: dict[str, str] = {}
    texts = {name: text_of(value) for name, value in settings.items()}
    off = switched_off(table["belonging"], texts)
    for name, value in texts.items():
        told = [(f".{name}", value)] if name in off else _argument(name, value, table)
        for argument, text in told:
            on = argument in EITHER and found.get(argument, "").lower() == "true"
            found[argument] = "true" if on else text
            of_several = len(told) > 1 and argument != UNKNOWN
            names[argument] = f"{name}.{argument.replace('-', '_')}" if of_several else name
    _settle(found, names)
    return found, names


def leave_to_recipe(found: dict[str, str], names: dict[str, str]) -> None:
    """Mark that a file of Megatron-Bridge, which changes a recipe, leaves to that whether the
    optimizer's states are sharded.

    Source: NVIDIA-NeMo/Megatron-Bridge@067f987, src/megatron/bridge/recipes/common.py.
    """
    if SHARDED not in found:
        found[UNSHARDED] = "true"
        names[UNSHARDED] = f"ddp.{SHARDED.replace('-', '_')}"


def _argument(name: str, value: str, table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The arguments that one setting stands for."""
    parts = name.split(".")
    if parts[-1] == TARGET and parts[-2:-1] and parts[-2] in ACTIVATIONS:
        parts = parts[:-1]  # a function, as Megatron-Bridge writes it
    leaf = parts[-1]
    if leaf == "sequence_length":
        return [("seq-length", value)]
    if leaf in ("micro_batch_size", "global_batch_size", "seq_length"):
        return [(leaf.replace("_", "-"), value)]
    if parts[-2:] == ["optim", "name"] or leaf == "optimizer":
        own = [("use-distributed-optimizer", "true")] if value in DISTRIBUTED else []
        return own or [("optimizer", "adam" if "adam" in value else value)]
    if leaf == FSDP:
        of_megatron = value == "megatron"
        return [("use-megatron-fsdp", "true")] if of_megatron else [("use-torch-fsdp2", value)]
    if leaf in PRECISIONS:
        return _precision(value, table["precisions"])
    if leaf == PACKED and not OFF.fullmatch(value):
        return [(PACKED.replace("_", "-"), value)]
    if set(parts) & set(table["ignored"]) or value.lower() in ("", "null", "none"):
        return [(f".{name}", value)]
    if leaf in table["inverted"]:
        opposite = "false" if value.lower() == "true" else "true"
        return [(table["inverted"][leaf], opposite)]
    if leaf in ACTIVATIONS:
        return _activation(value.rpartition(".")[2].lower())
    argument = (table["renames"] | table["older"]).get(leaf, leaf.replace("_", "-"))
    value = table["values"].get(argument, {}).get(value, value)
    return [(argument, value.rpartition(".")[2] if argument == "attention-backend" else value)]


def _precision(value: str, recipes: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str]]:
    """`bf16_mixed`, `bf16_with_fp8_delayed_scaling_mixed`, `16-mixed`, `bf16` and such; of a name
    that is not known bf16 alone, which is said."""
    text = value.lower().replace("-", "_").removesuffix("_mixed").removesuffix("_true")
    if text in FULL:
        return [("fp32", "true")]
    if text in HALVES:
        return [(HALVES[text], "true")]
    beside, named, recipe = text.rpartition("_with_")
    family, _, half = beside.rpartition("_")  # as nanov2_ has it
    key = f"{family}_{recipe}".strip("_")
    if named and half in HALVES and key in recipes:
        return [(HALVES[half], "true"), *recipes[key].items()]
    return [("bf16", "true"), (UNKNOWN, value)]


def _activation(word: str) -> list[tuple[str, str]]:
    if word in GATED:
        return [("swiglu", "true")]
    if word in OF_GELU:
        return [(OF_GELU[word], "true")]
    return [] if word == "gelu" else [(word.replace("_", "-"), "true")]


def _settle(found: dict[str, str], names: dict[str, str]) -> None:
    """What follows from several settings of a recipe."""
    if "num-query-groups" in found:
        found["group-query-attention"] = "true"
    gated = found.pop("gated-linear-unit", "true")
    if gated.lower() == "false":
        found.pop("swiglu", None)
        if found.pop("quick-geglu", None):
            found["openai-gelu"] = "true"
    if found.pop("transformer-engine", "true").lower() == "false":
        found["transformer-impl"] = "local"
    fp32 = found.pop("fp32", None)
    half = {"bf16", "fp16"} & {name for name, value in found.items() if value.lower() == "true"}
    if not half and fp32 is None:
        found |= {"bf16": "true", UNSAID: "true"}
        names[UNSAID] = "mixed_precision"


def packed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The setting of a model whose sequences are packed of documents, which a recipe of
    Megatron-Bridge trains on one by one."""
    if not (fields["document"] or fields["documents"]):
        return {}
    if fields["mbs"] > 1:
        raise PlanCannotRunError(
            f"Megatron-Bridge trains on packed sequences with mbs=1 alone, not {fields['mbs']}"
        )
    return {f"dataset.packed_sequence_specs.{PACKED}": fields["sequence"]}


def release_of(framework: str, settings: Mapping[str, Any]) -> tuple[str, str]:
    """The stack of a recipe's release, and why it is that one in words.

    Before NeMo 23.07 its whole configurations have no `mcore_gpt`, and where it is false the layers
    are still those of that time. Source: NVIDIA/NeMo, examples/nlp/language_modeling/conf/
    megatron_gpt_config.yaml.
    """
    stack = str(_table()["stack"])
    if framework == BRIDGE:
        return stack, "Megatron-Bridge's; --stack names another (simgpt stacks)"
    leaves = {name.rpartition(".")[2]: text_of(value) for name, value in settings.items()}
    before = leaves.get(CORE, "").lower() == "false" or (WHOLE in leaves and CORE not in leaves)
    if before and not NEWER & leaves.keys():
        why = f"{CORE} false" if CORE in leaves else f"no {CORE}"
        return "nemo@23.05", f"NeMo's of a configuration with {why}; {OTHERS}"
    return stack, f"NeMo's, of no earlier release that the files tell; {OTHERS}"


def devices_of(settings: Mapping[str, Any]) -> int | None:
    """Devices that a recipe's trainer has."""
    sizes = [text_of(settings.get(f"trainer.{key}")) for key in ("devices", "num_nodes")]
    if not all(size.isdecimal() and len(size) < 8 for size in sizes):
        return None
    return int(sizes[0]) * int(sizes[1]) or None


def recipe_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe of Megatron-Bridge for Megatron-LM's arguments, by dotted names."""
    table = _table()
    renamed = {argument: leaf for leaf, argument in reversed(table["renames"].items())}
    if "multi-latent-attention" in arguments:  # whose YaRN has Megatron-Core's own names
        renamed = {key: leaf for key, leaf in renamed.items() if not leaf.startswith("yarn_")}
    inverted = {argument: leaf for leaf, argument in reversed(table["inverted"].items())}
    found: dict[str, Any] = {}
    for argument, value in arguments.items():
        section = table["sections"].get(argument, "model")
        if argument in GATES:
            found |= {"model.gated_linear_unit": True, "model.activation_func": GATES[argument]}
        elif argument == "te-rng-tracker":  # of the model and of the training's start
            found |= {"model.use_te_rng_tracker": True, "rng.te_rng_tracker": True}
        elif argument in inverted:
            found[f"{section}.{inverted[argument]}"] = not value
        elif argument == "moe-layer-freq":  # of which a recipe wants the list
            found[f"{section}.moe_layer_freq"] = pattern_of(value, MOST) or value
        elif argument == "window-size":
            found[f"{section}.window_size"] = [int(side) for side in value.split(",")]
        elif argument not in ELSEWHERE:
            leaf = renamed.get(argument, argument.replace("-", "_"))
            found[f"{section}.{leaf}"] = value
    for argument in (SHARDED, *OVERLAPS):  # which recipes have on, where a file does not say it
        found.setdefault(f"ddp.{argument.replace('-', '_')}", False)
    if "bf16" not in arguments:
        found["mixed_precision"] = None
    return found
