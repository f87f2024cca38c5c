"""A recipe's settings by their dotted names, and those that could not be told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simgpt.frameworks.recipe_code.checkout import Checkout
from simgpt.frameworks.recipe_code.evaluator import Evaluator
from simgpt.frameworks.recipe_code.keys import OF_NEMO, RecipeKey
from simgpt.frameworks.recipe_code.layouts import evaluated, recipes_of
from simgpt.frameworks.recipe_code.nemo import own_names as own_names_of_nemo
from simgpt.frameworks.recipe_code.values import External, Place, RecipeError, Thing
from topologies.errors import SimgptError
from topologies.records import record
from workload.gpt import find_model

SIZES = {
    "tp": "model.tensor_model_parallel_size",
    "pp": "model.pipeline_model_parallel_size",
    "vpp": "model.virtual_pipeline_model_parallel_size",
    "cp": "model.context_parallel_size",
    "ep": "model.expert_model_parallel_size",
    "etp": "model.expert_tensor_parallel_size",
    "mbs": "train.micro_batch_size",
    "gbs": "train.global_batch_size",
    "sequence": "model.seq_length",
}
NEEDED = (  # what a recipe is asked for, whether it sets it or leaves it as it is by default
    *SIZES.values(),
    *("model.cuda_graph_impl", "model.cuda_graph_scope", "model.enable_cuda_graph"),
    *("model.moe_token_dispatcher_type", "model.moe_flex_dispatcher_backend"),
    "model.moe_enable_deepep",
    *("model.recompute_granularity", "model.recompute_modules", "model.recompute_num_layers"),
    *("model.recompute_method", "model.pipeline_model_parallel_layout"),
    *("comm_overlap.overlap_moe_expert_parallel_comm", "comm_overlap.delay_wgrad_compute"),
    *("comm_overlap.tp_comm_overlap", "ddp.overlap_grad_reduce", "ddp.use_megatron_fsdp"),
    *("mixed_precision.grad_reduce_in_fp32", "ddp.grad_reduce_in_fp32"),
    *("optimizer.use_precision_aware_optimizer", "optimizer.optimizer"),
    *("optimizer.main_grads_dtype", "optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype"),
    *("model.moe_expert_capacity_factor", "model.cpu_offloading_num_layers"),
    *("model.num_layers_in_first_pipeline_stage", "model.num_layers_in_last_pipeline_stage"),
)
MOST_NESTED = 4
NEAREST = 8
# torch.cuda.get_device_properties of the GPUs: compute capabilities 9.0, 10.0 and 10.3 (CUDA C++
# Programming Guide 13, "Compute Capabilities"), names as Megatron-Bridge compares them
# (src/megatron/bridge/training/flex_dispatcher_backend.py of v0.2.0 and v0.5.0).
DEVICES: Mapping[str, Mapping[str, Any]] = {
    "h100": {"major": 9, "minor": 0, "name": "NVIDIA H100 80GB HBM3"},
    "b200": {"major": 10, "minor": 0, "name": "NVIDIA B200"},
    "gb200": {"major": 10, "minor": 0, "name": "NVIDIA GB200"},
    "b300": {"major": 10, "minor": 3, "name": "NVIDIA B300"},
    "gb300": {"major": 10, "minor": 3, "name": "NVIDIA GB300"},
}


@record
class Unresolved:
    """A setting that the recipe's text does not determine, and where that became so."""

    name: str
    why: str
    place: Place


@record
class Recipe:
    """Settings of a recipe under the names that its YAML would have, on `devices`; `model` is the
    checkpoint whose configuration it takes ("" where it describes the model itself)."""

    key: RecipeKey
    devices: int
    settings: Mapping[str, Any]
    unresolved: tuple[Unresolved, ...]
    model: str

    def own_names(self, name: str) -> tuple[str, ...]:
        """The recipe's names for a setting of Megatron-Bridge's, the first before the others."""
        return own_names_of_nemo(name) if self.key.layout in OF_NEMO else (name,)

    def get(self, name: str, default: Any = None) -> Any:
        """A setting by Megatron-Bridge's name, the default where it is not set; None where it is
        unresolved."""
        found = [self.settings[each] for each in self.own_names(name) if each in self.settings]
        return next((each for each in found if each is not None), None) if found else default

    def is_untold(self, name: str) -> bool:
        """Whether a setting of such a name is unresolved."""
        untold = {each.name for each in self.unresolved}
        return any(each in untold for each in self.own_names(name))


def find_recipe(checkout: Checkout, name: str) -> RecipeKey:
    """The recipe of a name; a RecipeError names those that begin like it."""
    known = recipes_of(checkout)
    wanted = name.removesuffix("_config")
    for key in known:
        if wanted in (key.name, key.function):
            return key
    alike = [key.name for key in known if key.name[:6] == wanted[:6]] or [key.name for key in known]
    more = f" and {len(alike) - NEAREST} more" if len(alike) > NEAREST else ""
    raise RecipeError(f"no recipe {name}; there are {', '.join(alike[:NEAREST])}{more}")


def evaluate_recipe(
    checkout: Checkout,
    key: RecipeKey,
    devices: int | None = None,
    *,
    command: Sequence[str] = (),
) -> Recipe:
    """A recipe's settings on a number of devices, its own where none is given; a script's with a
    command line of its own."""
    ev = Evaluator(checkout, DEVICES.get(key.gpu), facts_of)
    config, count = evaluated(ev, key, devices, command)
    if key.layout in OF_NEMO:
        _read_model(ev, _within(config, ["model", "config"]))
        for name in NEEDED:
            _read_first(ev, config, own_names_of_nemo(name))
    else:
        _read_model(ev, config.fields.get("model"))
        for name in NEEDED:
            _read(ev, config, name.split("."))
    settings: dict[str, Any] = {}
    unresolved: list[Unresolved] = []
    for path, value in _leaves(config, (), ()):
        if isinstance(value, Thing):
            unresolved.append(Unresolved(path, value.label, value.place))
        else:
            settings[path] = value
    unresolved += [Unresolved("", why, place) for place, why in ev.notes]
    return Recipe(key, count, settings, tuple(unresolved), ev.model_name)


def _read_model(ev: Evaluator, model: Any) -> None:
    """Look up all fields that the classes of a model give, where the checkout describes it."""
    if not isinstance(model, Thing) or model.cls is None:
        return
    is_latent = "MLATransformerConfig" in ev.bases_outside(model.cls)
    latent = ("multi_latent_attention",) if is_latent else ()
    for name in (*ev.field_names(model.cls), "num_moe_experts", *latent):
        if name not in model.fields:
            value = ev.attribute(model, name, model.place)
            if isinstance(value, Thing) and value.is_unknown:
                model.fields.pop(name, None)
            else:
                model.fields[name] = value


def _within(thing: Any, names: list[str]) -> Any:
    """An object within others by its name; of a list the object of that class."""
    for name in names:
        if isinstance(thing, list):
            alike = [each for each in thing if isinstance(each, Thing) and each.label == name]
            thing = alike[-1] if alike else None
        else:
            thing = thing.fields.get(name) if isinstance(thing, Thing) else None
    return thing


def _read_first(ev: Evaluator, config: Thing, names: tuple[str, ...]) -> None:
    """Look up the first of several names that an object has, else the last one."""
    for name in names:
        *path, leaf = name.split(".")
        thing = _within(config, path)
        if not isinstance(thing, Thing):
            continue
        has = leaf in thing.fields or ev.takes(thing, leaf)
        if has or (name == names[-1] and ev.takes_others(thing)):
            _read(ev, config, name.split("."))
            if _within(config, name.split(".")) is not None:
                return


def _read(ev: Evaluator, thing: Any, names: list[str]) -> None:
    """Look an attribute up, so that it stands among the object's own even if a class gives it."""
    thing = _within(thing, names[:-1])
    if isinstance(thing, Thing) and names[-1] not in thing.fields:
        thing.fields[names[-1]] = ev.attribute(thing, names[-1], thing.place)


def facts_of(name: str) -> dict[str, Any]:
    """What is known of a checkpoint's model by its name on the hub: the number of experts."""
    try:
        gpt = find_model(name)
    except SimgptError:
        return {}
    return {"num_moe_experts": gpt.moe.experts or None}


def _leaves(
    thing: Thing, above: tuple[str, ...], around: tuple[Thing, ...]
) -> Iterator[tuple[str, Any]]:
    """Settings within an object by their dotted names; an unknown one is a `Thing`."""
    if thing in around or len(above) > MOST_NESTED:
        return
    for name, value in thing.fields.items():
        path = (*above, name)
        if isinstance(value, list) and any(isinstance(each, Thing) for each in value):
            for each in [each for each in value if isinstance(each, Thing)]:
                yield from _leaves(each, (*path, each.label), (*around, thing))
        elif isinstance(value, Thing) and value.is_unknown and not value.fields:
            yield ".".join(path), value
        elif isinstance(value, Thing):
            yield from _leaves(value, path, (*around, thing))
        elif is_plain(text := plain(value)):
            yield ".".join(path), text


_OTHER = object()


def is_plain(value: Any) -> bool:
    """Whether `plain` gave a literal."""
    return value is not _OTHER


def plain(value: Any) -> Any:
    """A literal, with members of enumerations and dtypes by their last part; `_OTHER` for others.

    >>> plain([External("torch.bfloat16"), 1])
    ['bfloat16', 1]
    """
    if isinstance(value, External):
        return value.last
    if isinstance(value, list | tuple):
        found = [plain(each) for each in value]
        return _OTHER if any(each is _OTHER for each in found) else found
    if isinstance(value, dict):
        items = {str(key): plain(item) for key, item in value.items()}
        return _OTHER if any(each is _OTHER for each in items.values()) else items
    return value if value is None or isinstance(value, bool | int | float | str) else _OTHER


def open_checkout(folder: Path) -> Checkout:
    """The checkout in a folder; a RecipeError says why it is none."""
    return Checkout(folder)


def named_recipe(folder: Path, name: str, devices: int | None = None) -> Recipe:
    """The recipe of a name of the checkout in a folder."""
    checkout = open_checkout(folder)
    return evaluate_recipe(checkout, find_recipe(checkout, name), devices)


__all__ = ["Recipe", "RecipeError", "Unresolved", "evaluate_recipe", "find_recipe", "named_recipe"]
