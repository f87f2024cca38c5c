"""The spellings of a model's name: `Llama-3.1-70B`, `meta-llama/Llama-3.1-70B-Instruct`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

WITHOUT_EFFECT = {  # on a model's shape
    *("meta", "hf", "base", "instruct", "chat", "it", "pt", "nvidia", "thinking", "sft", "dpo"),
    *(
        "gguf",
        "awq",
        "gptq",
        "bnb",
        "mlx",
        "autoround",
        "quantized",
        "unsloth",
        "dynamic",
        "static",
    ),
}
_NAME = re.compile(r"(?:[a-z0-9_-]+/)?([a-z0-9._ -]+)")  # an organisation may stand before it
# What a release's name may end with: its first version, a date, a length of context, a precision.
_ENDS = re.compile(
    r" (v 0 1|\d{4}|\d+ k|[1-9] m|fp (8|16)|bf 16|(nv|mx)fp [48]|int [48]|[348] bit|[wqa] \d+|"
    r"q \d k( [msl])?|per tensor|per channel|preview)$"
)
_WORD = re.compile(r"[a-z]+|\d+")


def words_of(name: str) -> tuple[str, ...]:
    """The words and numbers that tell a model from others; none, if it is no name of a model.

    Case, what stands between the words, the organisation before a slash, and words that do not bear
    on a model's shape are left out. Numbers are whole: 1.75 B is not 175 B.

    >>> words_of("meta-llama/Meta-Llama-3.1-70B-Instruct")
    ('llama', '3', '1', '70', 'b')
    >>> words_of("llama3.1 70b") == words_of("Llama-3.1-70B")
    True
    """
    found = _NAME.fullmatch(name.lower())
    words = _WORD.findall(found[1]) if found else ()
    return tuple(word for word in words if word not in WITHOUT_EFFECT)


def without_ends(words: tuple[str, ...]) -> tuple[str, ...]:
    """A name's words without those at its end that say which release of a model it is.

    >>> without_ends(words_of("mistralai/Mixtral-8x7B-Instruct-v0.1"))
    ('mixtral', '8', 'x', '7', 'b')
    """
    text = " ".join(words)
    while (shorter := _ENDS.sub("", text)) != text:
        text = shorter
    return tuple(text.split())


def nearest(name: str, presets: Collection[str]) -> str:
    """A hint at presets of the same family, which the first words of names tell; of none, at how a
    model is described."""
    words, plain = words_of(name), name.lower().rpartition("/")[2]
    if not words or not words[0].isalpha():
        return f"known: {', '.join(presets)}"
    own = difflib.get_close_matches(words[0], {words_of(each)[0] for each in presets}, n=1)
    alike = [each for each in presets if words_of(each)[0] in own]
    if near := difflib.get_close_matches(plain, alike, n=3, cutoff=0.4):
        return f"did you mean {', '.join(near)}?"
    fields = "layers=32,hidden=4096,heads=32"
    listed = "`simgpt models` lists the presets"
    return f"{listed}; else give its fields, as in {fields}, or its config.json"
