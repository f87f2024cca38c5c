"""Notes on a `config.json` of Hugging Face: what is assumed, not modelled, modelled differently, or
not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from topologies.files.printable import shown
from workload.descriptions.configs import lacking
from workload.descriptions.configs.activation import near_to
from workload.descriptions.configs.config import Config, as_json
from workload.descriptions.configs.experts import MARKS, OF_EXPERTS, TYPES
from workload.descriptions.configs.families import is_among
from workload.descriptions.configs.family import BLOCKS, OTHER
from workload.descriptions.configs.windows import are_elsewhere, switch_of, window_of
from workload.descriptions.described import Note
from workload.gpt import GPT
from workload.models.rope_scaling import NUMBERS, SCALINGS, rope_type, why_not

OF_PLAIN = ("rope_theta", "partial_rotary_factor")  # of a table that scales nothing
OF_TOKENS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")  # ends of classes


def notes_of(
    config: Config, gpt: GPT, biases: list[str], tables: Mapping[str, Any]
) -> Iterator[Note]:
    """All notes on a config."""
    fields = [f for f in config.row["keys"] if gpt.moe.experts or f not in OF_EXPERTS]
    if absent := [_filled(config, field) for field in fields if _is_absent(config, field)]:
        assumed = f"assumed, not in the config: {', '.join(dict.fromkeys(absent))}"
        yield Note(f"{assumed} (defaults of transformers for {config.family})")
    key = config.key_of("sequence")
    whose = "the config's" if config.has(key) else f"transformers' {config.family}"
    longest = f"sequence {gpt.sequence} is {whose} {key}"
    yield Note(f"{longest}; give --model-set sequence=8192 for another", "sequence")
    yield from _lacking(config, gpt, biases, tables)
    yield from _windows(config, gpt)
    yield from _said(config, gpt)
    yield from _rest(config, gpt)
    yield from _unread(config, tables)


def _is_absent(config: Config, field: str) -> bool:
    """Whether the family's default replaces a key that the config lacks. A null default follows
    from other fields, the same way in all families."""
    key = config.key_of(field)
    return not config.has(key) and key in config.row["absent"] and field != "sequence"


def _filled(config: Config, field: str) -> str:
    key = config.key_of(field)
    return f"{key} = {as_json(config.get(key))}"


def _lacking(
    config: Config, gpt: GPT, biases: list[str], tables: Mapping[str, Any]
) -> Iterator[Note]:
    """Notes on parts of the family's model that `GPT` cannot describe."""
    for which, count in lacking.biases_lacking(gpt, biases).items():
        yield Note(f"biases of {lacking.BIASES[which]} ({count:,} parameters) are not modelled")
    for text in lacking.sentences(gpt, config.row["lacks"]):
        yield Note(text)
    if text := near_to(config, tables):
        yield Note(f"{config.activation_key} = {config.get(config.activation_key)}: {text}")
    scaled = {key: config.get(key) for key in tables["scaled"]}
    given = [
        f"{key} = {as_json(value)}"
        for key, value in scaled.items()
        if value is not None and not is_among(value, tables["scaled"][key])
    ]
    if given:
        yield Note(f"not modelled: {', '.join(given)}")


def _windows(config: Config, gpt: GPT) -> Iterator[Note]:
    if are_elsewhere(config, gpt.attention.global_every):
        yield Note(
            f"layer_types: one of every {gpt.attention.global_every} layers attends to all tokens; "
            "simgpt takes the last one of each, the config another",
            above=gpt.attention.window,
        )
    if (window := window_of(config)) and switch_of(config):
        words = f"sliding_window = {window} of some layers is not read: all layers attend to all"
        words = f"{words} tokens; to change that, give --model-set window and global_every"
        yield Note(words, above=window)


def _said(config: Config, gpt: GPT) -> Iterator[Note]:
    """Notes that the family's row has on values, and the note on the load-balancing loss."""
    for each, about in config.row["said"].items():
        value = config.get(each)
        if value is None or value in about["unless"]:
            continue
        above = value if about.get("above") and type(value) is int else 0
        yield Note(f"{each} = {as_json(value)}: {about['text']}", above=above)
    if gpt.moe.balance_loss:
        key, over = balance_keys(config)[0], gpt.moe.balance_over.replace("_", "-")
        words = (
            f"{key} = {gpt.moe.balance_loss:g}: load-balancing loss per {over}, as in Megatron-Core"
        )
        words += " (transformers adds it only with output_router_logits)"
        yield Note(f"{words}; without it: --model-set balance_loss=0", "balance_loss")


def _rest(config: Config, gpt: GPT) -> Iterator[Note]:
    for key in SCALINGS:
        table = config.document.get(key) or {}
        if why := why_not(table, config.document):
            yield Note(f"{key} = {shown(table)} is ignored, RoPE is not scaled: {why}")
            continue
        method = rope_type(table)
        plain = method == "default" or (not method and not set(table) - {*OF_PLAIN})
        if not plain and method not in NUMBERS:
            yield Note(f"{key} = {shown(table)} is ignored: RoPE is not scaled")
    rates = {key: rate for key, rate in config.dropouts.items() if rate}
    if rates and not gpt.dropout:
        given = ", ".join(f"{key} = {rate}" for key, rate in rates.items())
        yield Note(f"{given}: simgpt's models have a single dropout rate; 0 is assumed", "dropout")
    classes, own = config.document.get("architectures"), config.row["architectures"]
    if classes and classes[0] not in own and not classes[0].endswith(OF_TOKENS):
        yield Note(f"{shown(classes[0])} is read as {own[0]}, with a language-model head")


def balance_keys(config: Config) -> list[str]:
    """The keys of the load-balancing loss."""
    experts = config.row["experts"]
    return [experts[name] for name in ("balance", "over") if name in experts]


def _unread(config: Config, tables: Mapping[str, Any]) -> Iterator[Note]:
    """A note on keys that were not read, without those that have no effect."""
    row, without_effect = config.row, tables["without_effect"]
    known = {
        *without_effect["keys"],
        *chain.from_iterable(row[part] for part in ("absent", "biases", "only", "equal", "said")),
        *chain(*row["keys"].values()),
        *chain(*(case["if"] for case in row["cases"])),
        *(each for each in row["experts"].values()),
        *row["window"].get("every", []),
        *([row["window"]["key"]] if row["window"] else []),
        *row["activation"].get("key", []),
        *row["dropouts"],
        *row["ignored"],
        *([TYPES, MARKS] if "experts" in row["keys"] else []),
        *tables["scaled"],
        *([BLOCKS] if "pattern" in row["keys"] else []),
    }
    known |= {key for key in without_effect["while_false"] if not config.document.get(key)}
    tops = {key.partition(".")[0] for key in known}
    given = [key for key, value in config.document.items() if value is not None]
    unread = [key for key in given if key not in tops and not _is_of_others(config, key)]
    if unread:
        yield Note(f"not read: {', '.join(shown(key) for key in unread)}")


def _is_of_others(config: Config, key: str) -> bool:
    """Whether a key holds the config of a model other than the language model."""
    return isinstance(config.document[key], dict) and key.endswith(OTHER)
