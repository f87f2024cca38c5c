"""A configuration in Python of torchtitan as settings of its TOML, for `import --recipe`.

Since February 2026 torchtitan's configurations are functions, of one config_registry.py a model.
Their syntax trees are evaluated (recipe_code/evaluator.py), and what they set is renamed to the
TOML's names; what the text does not determine is listed with its line. Sources: pytorch/torchtitan
@9810191bb and @b5bcd76c6, torchtitan/config/configs.py, torchtitan/models/*/config_registry.py,
torchtitan/distributed/activation_checkpoint.py, torchtitan/components/loss.py (ChunkedLossWrapper).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simgpt.frameworks.files import TORCHTITAN, Described
from simgpt.frameworks.reading import FrameworkError, Remark
from simgpt.frameworks.recipe_code.checkout import Checkout
from simgpt.frameworks.recipe_code.evaluator import Evaluator, evaluated_call, guarded
from simgpt.frameworks.recipe_code.recipe import is_plain, plain
from simgpt.frameworks.recipe_code.values import Builtin, Module, Place, RecipeError, Thing
from topologies.files.printable import path_shown, shown
from topologies.files.reading import shipped_toml

FILE = "config_registry.py"
MODELS = "torchtitan/models"
REGISTRY, ADAMW = "model_registry", "default_adamw"
CONFIG = ("Trainer", "Config")
SECTIONS = ("training", "parallelism", "compile", "activation_checkpoint", "debug", "optimizer")
UNTOLD = "the configuration's text does not determine it"
RECOMPUTES = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget"}
CHUNKS = 8  # ChunkedLossWrapper.Config.num_chunks
TOKENS, CONTEXT = 16384, 2048  # of a micro-batch and of a sequence: defaults of TrainingConfig
FLOAT8 = "Float8"
ADAPTERS = "LoRA"


def is_titan(path: Path) -> bool:
    """Whether a path is a file of such configurations, or a checkout that has some."""
    return path.suffix == ".py" or (path / MODELS).is_dir()


def read_titan(path: Path, name: str) -> Described:
    """The settings of a configuration. Raises a FrameworkError where it cannot be read."""
    try:
        file = path if path.suffix == ".py" else _file_of(path, name)
        config, notes = _evaluated(file, name)
    except RecipeError as error:
        raise FrameworkError(str(error)) from None
    settings: dict[str, Any] = {}
    untold: list[Remark] = []
    for key, value in _leaves(config):
        if isinstance(value, Thing):
            untold.append(Remark(key, str(value.place), UNTOLD))
        else:
            settings[key] = value
    untold += [Remark(str(place), "", why) for place, why in notes if "may change Trainer" in why]
    settings |= _model(config.fields.get("model_spec"), config, file, name)
    return Described(TORCHTITAN, _as_toml(settings), left_out=tuple(untold))


def _file_of(folder: Path, name: str) -> Path:
    """The file of a checkout that defines a configuration."""
    files = sorted(folder.glob(f"{MODELS}/*/{FILE}"))[:200]
    for file in files:
        tree = Checkout(file.parent, ("",)).tree(file.resolve())
        if any(getattr(node, "name", "") == name for node in tree.body):
            return file
    known = ", ".join(file.parent.name for file in files)
    raise RecipeError(f"no configuration {shown(name)} of {known} in {path_shown(folder)}")


def _evaluated(file: Path, name: str) -> tuple[Thing, list[tuple[Place, str]]]:
    """What a function of a file returns, and what could not be followed in it."""
    ev = Evaluator(Checkout(file.parent, ("",)))
    module = guarded(lambda: ev.module(file.stem), file.stem)
    if isinstance(module, Module):
        module.variables[REGISTRY] = Builtin(REGISTRY, _registered)
        module.variables[ADAMW] = Builtin(ADAMW, lambda place, given, named: Thing(ADAMW, place))
    config = evaluated_call(ev, file.stem, name, [], {})
    if not isinstance(config, Thing) or config.kind != CONFIG or config.is_unknown:
        raise RecipeError(f"{path_shown(file)}: {shown(name)} returns no Trainer.Config")
    return config, ev.notes


def _registered(place: Place, given: list[Any], named: dict[str, Any]) -> Thing:
    """The model of a flavour."""
    return Thing(REGISTRY, place, {**dict(zip(("flavor",), given, strict=False)), **named})


def _leaves(config: Thing) -> Iterator[tuple[str, Any]]:
    """The settings of the sections that bear on a step; an unknown one is a `Thing`."""
    for section in SECTIONS:
        thing = config.fields.get(section)
        if not isinstance(thing, Thing):
            continue
        if thing.is_unknown:
            yield section, thing
        for field, value in thing.fields.items():
            if isinstance(value, Thing) and value.is_unknown:
                if value.default_of != (*thing.kind, field):
                    yield f"{section}.{field}", value
            elif is_plain(text := plain(value)):
                yield f"{section}.{field}", text
    kind = _outer(config.fields.get("activation_checkpoint"))
    if kind in RECOMPUTES:
        yield "activation_checkpoint.mode", RECOMPUTES[kind]
        yield "activation_checkpoint.selective_ac_option", "op"


def _outer(thing: Any) -> str:
    """The name of the outermost class that a thing is of, "" where there is none."""
    return next(iter(getattr(thing, "kind", ())), "")


def _model(spec: Any, config: Thing, file: Path, name: str) -> dict[str, Any]:
    """What a configuration says of its model, its converters and its loss."""
    found: dict[str, Any] = {}
    fields = spec.fields if isinstance(spec, Thing) else {}
    flavors = shipped_toml("simgpt", "frameworks/torchtitan.toml")["models"]
    names = sorted({key.partition(".")[0] for key in flavors}, key=len)
    folder = file.resolve().parent.name
    family = folder if folder in names else next(filter(name.startswith, reversed(names)), "")
    found["model.name"], found["model.flavor"] = family, plain(fields.get("flavor"))
    older = config.fields.get("model_converters")
    converters = [
        *_things(fields.get("converters")),
        *_things(older.fields.get("converters") if isinstance(older, Thing) else None),
    ]
    kinds = [_outer(each) for each in converters]
    if any(kind.startswith(ADAPTERS) for kind in kinds):
        raise FrameworkError(
            f"{path_shown(file)}: {shown(name)} trains adapters (LoRA) alone, which is not modelled"
        )
    words = ["float8" if kind.startswith(FLOAT8) else kind for kind in kinds]
    if words:
        found["model.converters"] = list(dict.fromkeys(words))
    backend = fields.get("moe_comm_backend")
    if isinstance(backend, str):
        found["parallelism.expert_parallel_comm_backend"] = backend
    loss = config.fields.get("loss")
    if isinstance(loss, Thing) and _outer(loss).startswith("ChunkedLoss"):
        found["loss.num_chunks"] = plain(loss.fields.get("num_chunks", CHUNKS))
    return found


def _things(value: Any) -> list[Thing]:
    return [each for each in value if isinstance(each, Thing)] if isinstance(value, list) else []


def _as_toml(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under the TOML's names: tokens of a micro-batch as sequences, and compiled where the
    model is."""
    found = dict(settings)
    tokens = found.pop("training.num_tokens_per_microbatch_per_dp_rank", None)
    step = found.pop("training.num_tokens_per_train_step", -1)
    if tokens is not None or "training.max_context_length" in found:
        sequence = found.pop("training.max_context_length", CONTEXT)
        micro_batch = max(int(tokens or TOKENS) // int(sequence), 1)
        parts = int(found.pop("parallelism.num_pp_microbatches", 1))
        piped = int(found.get("parallelism.pipeline_parallel_degree", 1)) > 1
        found["training.seq_len"] = sequence
        found["training.local_batch_size"] = micro_batch * (parts if piped else 1)
        if piped:
            found["parallelism.pipeline_parallel_microbatch_size"] = micro_batch
        if int(step) > 0:
            found["training.global_batch_size"] = int(step) // int(sequence)
    components = found.pop("compile.components", ["model"])
    if "model" not in components:
        found["compile.enable"] = False
    return {name: value for name, value in found.items() if value is not None}
