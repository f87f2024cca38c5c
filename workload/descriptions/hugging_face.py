"""Hugging Face's `config.json`: the model it describes, and what of it a model does not carry.

What the families' keys are, and what transformers takes for one that is absent, is data:
`families.toml`, a row for each, and `hugging_face.toml`. Whatever bears on a step's time or memory
and has no field in `GPT` is either refused by its name or said in a note; no key goes unread in
silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from topologies.files.printable import printable, shown
from workload.descriptions.configs import families, lacking, windows
from workload.descriptions.configs.activation import activation_of, near_to
from workload.descriptions.configs.config import Config, as_json
from workload.descriptions.configs.experts import OF_EXPERTS, experts_of
from workload.descriptions.configs.family import (
    BLOCKS,
    LANGUAGE,
    LETTERS,
    PATTERN,
    family_of,
    of_language,
    with_pattern,
)
from workload.descriptions.configs.kinds import check_kinds, with_equal_values
from workload.descriptions.configs.notes import notes_of
from workload.descriptions.described import Described, Note
from workload.descriptions.fields import KINDS
from workload.descriptions.from_table import WORDS
from workload.errors import ModelError
from workload.gpt import GPT
from workload.model.fields import MOST
from workload.models.pattern import EXPERTS
from workload.models.rope_scaling import is_carried, text_of_config

MAY_BE_NULL = ("kv_heads", "head_width", "ffn", "q_rank", "value_width")
MAY_BE_NONE = ("dense_layers", "shared_ffn", "expert_latent")


def is_config(document: Any) -> bool:
    """Whether a JSON document is a config of Hugging Face rather than fields of a model."""
    if not isinstance(document, dict):
        return False
    within = any(isinstance(document.get(key), dict) for key in LANGUAGE)
    return within or bool({"model_type", "architectures"} & document.keys())


def check_own(document: Any, origin: str) -> None:
    """Refuse with a ModelError what is neither a config nor fields of a model: that of an adapter,
    and sizes in the words of configs without a family."""
    if not isinstance(document, dict):
        return
    if "peft_type" in document:
        base = shown(document.get("base_model_name_or_path") or "its base model")
        raise ModelError(
            f"{origin} is of an adapter ({shown(document['peft_type'])}), which is not modelled; "
            f"full training of {base} is: give that as MODEL"
        )
    if {"hidden_size", "num_hidden_layers", "n_embd", "n_layer"} & document.keys():
        raise ModelError(f"{origin} has the sizes of a config.json, and no model_type: add it")


def model_from_config(document: Mapping[str, Any], origin: str, *, name: str) -> Described:
    """The model of a config, with notes; `origin` names the file in sentences.

    `name` is the model's, or the family's if it is empty. The training's sequence is not in a
    config: it is the longest there may be, and a note says so.
    """
    tables = families.tables()
    document, origin, left_out = of_language(document, origin, tables)
    document = with_pattern(document)
    family, remark = family_of(document, origin, tables)
    row = families.row_for(tables["families"], family, document)
    document, rounded = _with_rope_base(document)
    document = with_equal_values(document, row)
    config = Config(origin, family, row, document)
    check_kinds(document, tables["kinds"], row, origin)
    _check(config, tables)
    biases = _biases(config)
    try:
        gpt = GPT.of(
            name=shown(printable(name) or family),
            source=f"a config.json of Hugging Face, family {family}",
            **_fields(config, tables, biases),
        )
    except ModelError as error:
        raise ModelError(f"{error}{config.keys_in(str(error))}") from None
    _check_equal(config, gpt)
    notes = tuple(notes_of(config, gpt, biases, tables))
    if left_out:
        notes = (Note(f"left out beside the language model: {', '.join(left_out)}"), *notes)
    notes = (*(Note(text) for text in (*remark, *rounded)), *notes)
    missing = sum(lacking.biases_lacking(gpt, biases).values())
    missing += sum(lacking.elements(gpt, lack) for lack in row["lacks"].values())
    return Described(gpt, notes, tuple(_beyond(config, gpt, biases, tables)), missing)


def _with_rope_base(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """The config with `rope_theta` at its top, where transformers 5 puts it into a table, or into
    one of layers that attend to all tokens; and what to say of one that is no whole number."""
    within = document.get("rope_parameters")
    if isinstance(within, dict) and isinstance(within.get(windows.WHOLE), dict):
        within = within[windows.WHOLE]
    if isinstance(within, dict) and "rope_theta" in within:
        document = {"rope_theta": within["rope_theta"], **document}
    base = document.get("rope_theta")
    if not isinstance(base, float) or not math.isfinite(base) or base.is_integer():
        return document, []
    return {**document, "rope_theta": round(base)}, [f"rope_theta = {base}: rounded"]


def _fields(config: Config, tables: Mapping[str, Any], biases: list[str]) -> dict[str, Any]:
    """The fields of the model."""
    row = config.row
    found = {**row["fixed"], "activation": activation_of(config, tables)}
    has_experts = "experts" in row["keys"]
    if PATTERN in row["keys"].get("pattern", []) and EXPERTS not in str(config.get(PATTERN)):
        has_experts = False  # whose sizes such a config has all the same
        found = {field: value for field, value in found.items() if field not in OF_EXPERTS}
    for field in row["keys"]:
        value = config.get(config.key_of(field))
        if field in OF_EXPERTS and not has_experts:
            continue
        if value is None and field in MAY_BE_NONE:
            continue
        if value is not None or field not in MAY_BE_NULL:
            found[field] = _value(config, field, value)
    if has_experts:
        found |= experts_of(row["experts"], config, found["layers"])
    found.setdefault("ffn", 4 * found["hidden"])
    found |= windows.fields_of(config, found["layers"])
    if found["positions"] == "rope":
        latent = "kv_rank" in found
        found["rope_scaling"] = text_of_config(config.document, latent=latent)
    if {"qkvo", "mlp"} <= set(biases):
        found |= {"biases": True, "qkv_bias": False}
    elif "qkv" in biases:
        found["qkv_bias"] = True
    return _without_usual(found, config)


def _without_usual(found: dict[str, Any], config: Config) -> dict[str, Any]:
    """The fields without those that say nothing more than others."""
    if found.get("value_width") == found.get("head_width"):
        found.pop("value_width", None)
    if found.get("kv_heads") == found["heads"]:
        del found["kv_heads"]
    if found.get("head_width", 0) * found["heads"] == found["hidden"]:
        del found["head_width"]
    if len(rates := config.dropouts) == 3 and len(set(rates.values())) == 1:
        found["dropout"] = float(next(iter(rates.values())))
    return found


def _value(config: Config, field: str, value: Any) -> Any:
    kind = KINDS[field]
    if kind == "int" and isinstance(value, float) and value.is_integer():
        value = int(value)
    if kind == "float" and type(value) is int:
        value = float(value)
    if type(value).__name__ != kind:
        config.wrong(config.key_of(field), value, f"must be {WORDS[kind]}")
    if kind == "int" and value > (most := MOST.get(field, value)):
        config.wrong(config.key_of(field), value, f"must be at most {most:,}")
    if kind == "int" and value < (least := int(field not in MAY_BE_NONE)):
        config.wrong(config.key_of(field), value, f"must be at least {least}")
    return value


def _biases(config: Config) -> list[str]:
    """Which of the biases there are, by the words of the families' rows."""
    switches = config.row["biases"]
    return lacking.biases_of(switches, {key: bool(config.get(key)) for key in switches})


def _check(config: Config, tables: Mapping[str, Any]) -> None:
    """Refuse values that no field of `GPT` describes and no note covers."""
    row = config.row
    for switch in filter(None, [*row["biases"], windows.switch_of(config)]):
        if not isinstance(config.get(switch) or False, bool):
            config.wrong(switch, config.get(switch), "must be true or false")
    for each, allowed in row["only"].items():
        if not families.is_among(config.get(each), allowed):
            config.wrong(each, config.get(each), f"is not modelled; {as_json(allowed[0])} is")
    if "pattern" in row["keys"]:
        _check_blocks(config, config.document.get(BLOCKS) or [])
    types = config.document.get("layer_types") or []
    for each in types if isinstance(types, list) else [types]:
        known = tables["layer_types"].get(each) if isinstance(each, str) else None
        if known != "":
            layers = f": {known}" if known else ""
            config.wrong("layer_types", each, f"is not modelled{layers}")


def _check_equal(config: Config, gpt: GPT) -> None:
    """Refuse a key that must equal a field and does not."""
    for key, field in config.row["equal"].items():
        if (value := config.get(key)) is not None and value != gpt.value(field):
            config.wrong(key, value, f"is not modelled; it must equal {config.key_of(field)}")


def _check_blocks(config: Config, words: list[Any]) -> None:
    """Refuse unknown words for a hybrid's layers, and words that contradict the letters."""
    for word in words:
        if not isinstance(word, str) or word not in LETTERS:
            config.wrong(BLOCKS, word, f"is not one of {', '.join(LETTERS)}")
    letters = "".join(LETTERS[word] for word in words)
    if words and letters != config.get(PATTERN):
        config.wrong(PATTERN, config.get(PATTERN), f"contradicts {BLOCKS}, {shown(letters)}")


def _beyond(config: Config, gpt: GPT, biases: list[str], tables: Mapping[str, Any]) -> list[str]:
    """Keys of `described.BEYOND`: what the model has that `GPT` has no field for."""
    found = list(lacking.biases_lacking(gpt, biases))
    found += ["parts"] if config.row["lacks"] else []
    found += ["activation"] if near_to(config, tables) else []
    scaled = [key for key in tables["scaled"] if _is_scaled(config, key, tables)]
    found += ["scales"] if scaled else []
    return found + ([] if is_carried(config.document) else ["rope"])


def _is_scaled(config: Config, key: str, tables: Mapping[str, Any]) -> bool:
    value = config.get(key)
    return value is not None and not families.is_among(value, tables["scaled"][key])
