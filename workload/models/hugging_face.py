"""Hugging Face's `config.json`: the model it describes, and what of it a model does not carry.

What the families' keys are, and what transformers takes for one that is absent, is data:
`hugging_face.toml`. Whatever bears on a step's time or memory and has no field in `GPT` is either
refused by its name or said in a note; no key goes unread in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NoReturn

from topologies.files.printable import printable, shown
from topologies.files.reading import shipped_toml
from workload.errors import ModelError
from workload.gpt import GPT
from workload.models.configs.experts import experts_of
from workload.models.configs.family import (
    BLOCKS,
    LETTERS,
    PATTERN,
    family_of,
    of_language,
    with_pattern,
)
from workload.models.configs.kinds import check_kinds
from workload.models.described import Described, Note
from workload.models.field_limits import MOST
from workload.models.fields import KINDS
from workload.models.rope_scaling import NUMBERS, SCALINGS, rope_type, text_of_config

MAY_BE_NULL = ("kv_heads", "head_width", "ffn", "q_rank", "value_width")
OF_PLAIN = ("rope_theta", "partial_rotary_factor")  # of a table that scales nothing
MAY_BE_NONE = ("dense_layers",)
ATTENTION = ("full_attention", "sliding_attention")  # in `layer_types`
_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
_BIASES = {
    "qkvo": "the attention's linears",
    "mlp": "the MLP's linears",
}


def is_config(document: Any) -> bool:
    """Whether a JSON document is a config of Hugging Face rather than fields of a model."""
    return isinstance(document, dict) and bool({"model_type", "architectures"} & document.keys())


def model_from_config(document: Mapping[str, Any], origin: str, *, name: str) -> Described:
    """The model of a config, with notes; `origin` names the file in sentences.

    `name` is the model's, or the family's if it is empty. The training's sequence is not in a
    config: it is the longest there may be, and a note says so.
    """
    tables = shipped_toml("workload", "models/hugging_face.toml")
    document, origin, left_out = of_language(document, origin, tables)
    document = with_pattern(document)
    family = family_of(document, origin, tables)
    config = _Config(origin, family, tables["families"][family], _with_rope_base(document))
    check_kinds(document, tables["kinds"], config.table, origin)
    config.check()
    try:
        gpt = GPT(
            name=shown(printable(name) or family),
            source=f"a config.json of Hugging Face, family {family}",
            **config.fields(),
        )
    except ModelError as error:
        raise ModelError(f"{error}{config.keys_in(str(error))}") from None
    gpt = replace(gpt, biases=gpt.biases or config.has_all_biases)
    notes = tuple(config.notes(gpt, tables["without_effect"]))
    if left_out:
        notes = (Note(f"left out beside the language model: {', '.join(left_out)}"), *notes)
    return Described(gpt, notes, tuple(config.beyond(gpt)))


def _with_rope_base(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with `rope_theta` at its top, where transformers 5 puts it into a table."""
    within = document.get("rope_parameters")
    if isinstance(within, dict) and "rope_theta" in within:
        return {"rope_theta": within["rope_theta"], **document}
    return document


@dataclass(frozen=True, slots=True)
class _Config:
    """A config beside what is known of its family."""

    origin: str
    family: str
    table: Mapping[str, Any]  # the family's, from `hugging_face.toml`
    document: Mapping[str, Any]

    def get(self, key: str) -> Any:
        """What a key says, or what transformers takes for it where it is absent."""
        return self.document.get(key, self.table["absent"].get(key))

    def key_of(self, field: str) -> str:
        """The key that the config has a field under, or the usual one if it has none."""
        keys: list[str] = self.table["keys"][field]
        return next((key for key in keys if key in self.document), keys[0])

    def keys_in(self, sentence: str) -> str:
        """The end of a sentence on fields: the config's keys of them, where they differ."""
        fields = [field for field in self.table["keys"] if f"{field}=" in sentence]
        named = {self.key_of(field): field for field in fields}
        keys = [f"{key} is {field}" for key, field in named.items() if key not in sentence]
        return f" ({self.origin}: {', '.join(keys)})" if keys else ""

    def fields(self) -> dict[str, Any]:
        """The fields of the model."""
        found = dict(self.table["fixed"])
        for field in self.table["keys"]:
            value = self.get(self.key_of(field))
            if value is not None or field not in MAY_BE_NULL:
                found[field] = self._value(field, value)
        found |= experts_of(self.table.get("experts", {}), self.get, found["layers"], self.origin)
        found.setdefault("ffn", 4 * found["hidden"])
        if (window := self._window()) and not self._window_switch:
            found["window"] = window
            if every := self.table["window"].get("whole_every"):
                found["global_every"] = self._whole_every(found["layers"], every)
            if found.get("global_every") == 1:
                del found["window"], found["global_every"]
        if found["positions"] == "rope":
            latent = "kv_rank" in found
            found["rope_scaling"] = text_of_config(self.document, self.origin, latent=latent)
        if found.get("value_width") == found.get("head_width"):
            found.pop("value_width", None)
        if found.get("kv_heads") == found["heads"]:
            del found["kv_heads"]
        if found.get("head_width", 0) * found["heads"] == found["hidden"]:
            del found["head_width"]
        if len(rates := self._dropouts) == 3 and len(set(rates.values())) == 1:
            found["dropout"] = float(next(iter(rates.values())))
        return found

    def _value(self, field: str, value: Any) -> Any:
        kind = KINDS[field]
        if kind == "int" and isinstance(value, float) and value.is_integer():
            value = int(value)
        if kind == "float" and type(value) is int:
            value = float(value)
        if type(value).__name__ != kind:
            self._wrong(self.key_of(field), value, f"must be {_WORDS[kind]}")
        if kind == "int" and value > (most := MOST.get(field, value)):
            self._wrong(self.key_of(field), value, f"must be at most {most:,}")
        if kind == "int" and value < (least := int(field not in MAY_BE_NONE)):
            self._wrong(self.key_of(field), value, f"must be at least {least}")
        return value

    @property
    def _dropouts(self) -> dict[str, float]:
        rates = {key: self.get(key) or 0 for key in self.table["dropouts"]}
        for key, rate in rates.items():
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
                self._wrong(key, rate, "must be a number from 0 to below 1")
        return rates

    @property
    def _biases(self) -> list[str]:
        """Which of the biases there are, by the words of the families' tables."""
        switches = self.table["biases"].items()
        return [which for switch, which in switches if self.get(switch)]

    @property
    def has_all_biases(self) -> bool:
        """Whether all linears of a layer have a bias."""
        return {"qkvo", "mlp"} <= set(self._biases)

    def check(self) -> None:
        """Refuse what no field of a model stands for and no note excuses."""
        key, names = self.table["activation"]["key"], self.table["activation"]["names"]
        if self.get(key) not in names:
            self._wrong(key, self.get(key), f"is not modelled in {self.family}; {names[0]} is")
        for switch in filter(None, [*self.table["biases"], self._window_switch]):
            if not isinstance(self.get(switch) or False, bool):
                self._wrong(switch, self.get(switch), "must be true or false")
        for each, allowed in self.table.get("only", {}).items():
            if self.get(each) not in allowed:
                self._wrong(each, self.get(each), f"is not modelled; {_shown(allowed[0])} is")
        if "pattern" in self.table["keys"]:
            self._check_blocks(self.document.get(BLOCKS) or [])
        types = self.document.get("layer_types") or []
        for each in types if isinstance(types, list) else [types]:
            if each not in ATTENTION:
                self._wrong("layer_types", each, "is not modelled")

    def _check_blocks(self, words: list[Any]) -> None:
        """Refuse words of a hybrid's layers that are none, or not what the letters say."""
        for word in words:
            if not isinstance(word, str) or word not in LETTERS:
                self._wrong(BLOCKS, word, f"is none of {', '.join(LETTERS)}")
        letters = "".join(LETTERS[word] for word in words)
        if words and letters != self.get(PATTERN):
            self._wrong(PATTERN, self.get(PATTERN), f"is not what {BLOCKS} says, {shown(letters)}")

    def _wrong(self, key: str, value: Any, what: str) -> NoReturn:
        raise ModelError(f"{self.origin}: {key} = {_shown(value)} {what}")

    def notes(self, gpt: GPT, without_effect: Mapping[str, list[str]]) -> Iterator[Note]:
        """What is assumed, what is left out, and what is not read."""
        if absent := [self._filled(f) for f in self.table["keys"] if self._is_absent(f)]:
            of = f"the config does not say {', '.join(dict.fromkeys(absent))}"
            yield Note(f"{of}: so transformers has it for {self.family}")
        key = self.key_of("sequence")
        whose = "the config's" if key in self.document else f"transformers' {self.family}"
        longest = f"sequence {gpt.sequence} is {whose} {key}"
        yield Note(f"{longest}; give --model-set sequence=8192 for another", "sequence")
        yield from self._left_out(gpt)
        known = {
            *without_effect["keys"],
            *self.table["absent"],
            *chain(*self.table["keys"].values()),
            *self._balance_keys,
            *self.table.get("said", {}),
            *([BLOCKS] if "pattern" in self.table["keys"] else []),
        }
        known |= {key for key in without_effect["while_false"] if not self.document.get(key)}
        unread = [key for key, value in self.document.items() if value is not None]
        if unread := [shown(key) for key in unread if key not in known]:
            yield Note(f"not read: {', '.join(unread)}")

    def _is_absent(self, field: str) -> bool:
        """Whether a value of the family's stands where the config has none; what is null there
        follows from other fields in all families alike."""
        key = self.key_of(field)
        return key not in self.document and key in self.table["absent"] and field != "sequence"

    def _filled(self, field: str) -> str:
        key = self.key_of(field)
        return f"{key} = {_shown(self.get(key))}"

    def beyond(self, gpt: GPT) -> Iterator[str]:
        """What the model has and `GPT` no field for, in the words of `Described.beyond`."""
        yield from [] if gpt.biases else self._biases

    def _left_out(self, gpt: GPT) -> Iterator[Note]:
        for which in [] if gpt.biases else self._biases:
            count = gpt.layers * _bias_elements(gpt, which)
            yield Note(f"biases of {_BIASES[which]} ({count:,} parameters) are not modelled")
        if (window := self._window()) and self._window_switch:
            words = f"sliding_window = {window} of some layers is not read: attention is over all"
            words = f"{words} tokens; give --model-set window and global_every"
            yield Note(words, above=window)
        for each, about in self.table.get("said", {}).items():
            if self.get(each) is not None and self.get(each) not in about["unless"]:
                yield Note(f"{each} = {_shown(self.get(each))}: {about['text']}")
        if gpt.balance_loss:
            key, over = self._balance_keys[0], gpt.balance_over.replace("_", "-")
            words = f"{key} = {gpt.balance_loss:g}: a loss of uneven use over each {over}, as "
            words += "Megatron-Core adds it and transformers with output_router_logits alone"
            yield Note(f"{words}; give --model-set balance_loss=0 for none", "balance_loss")
        for key in SCALINGS:
            table = self.document.get(key) or {}
            method = rope_type(table)
            plain = method == "default" or (not method and not set(table) - {*OF_PLAIN})
            if not plain and method not in NUMBERS:
                yield Note(f"{key} = {shown(table)}: rotary positions are taken as plain ones")
        rates = {key: rate for key, rate in self._dropouts.items() if rate}
        if rates and not gpt.dropout:
            given = ", ".join(f"{key} = {rate}" for key, rate in rates.items())
            yield Note(f"{given}: a model has one dropout for all places; 0 is taken", "dropout")
        classes, own = self.document.get("architectures"), self.table["architectures"]
        if classes and classes[0] not in own:
            yield Note(f"{shown(classes[0])} is taken as {own[0]}, with a classifier of the tokens")

    @property
    def _balance_keys(self) -> list[str]:
        experts = self.table.get("experts", {})
        return [experts[name] for name in ("balance", "over") if name in experts]

    @property
    def _window_switch(self) -> str:
        return str(self.table.get("window", {}).get("switch", ""))

    def _window(self) -> int:
        """Tokens of the sliding window; 0 if there is none."""
        window = self.table.get("window")
        if window is None or (self._window_switch and not self.get(self._window_switch)):
            return 0
        tokens = self.get(window["key"])
        if tokens is not None and (type(tokens) is not int or tokens < 1):
            self._wrong(window["key"], tokens, "must be a whole number of tokens")
        return tokens or 0

    def _whole_every(self, layers: int, usual: int) -> int:
        """Every which layer attends to all tokens, by `layer_types` or as usual in the family; 0
        where none does."""
        types = self.document.get("layer_types") or []
        whole = [n for n, each in enumerate(types, start=1) if each == ATTENTION[0]]
        every = (whole or [0])[0] if types else usual
        if types and (
            len(types) != layers
            or whole != [n for n in range(1, layers + 1) if every and not n % every]
        ):
            raise ModelError(
                f"{self.origin}: layer_types has {len(types)} layers, of which {len(whole)} attend "
                f"to all tokens: it should be every so manieth of {layers}"
            )
        return every


def _bias_elements(gpt: GPT, which: str) -> int:
    """Elements of some biases of one layer."""
    if which == "mlp":
        return sum(gpt.up_bands) + gpt.hidden
    return sum(gpt.bands) + (gpt.hidden if which == "qkvo" else 0)


def _shown(value: Any) -> str:
    """A value as JSON writes it."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else shown(value)
