"""The spellings of a model's name: `Llama-3.1-70B`, `meta-llama/Llama-3.1-70B-Instruct`, …"""

from __future__ import annotations

import re

WITHOUT_EFFECT = {"meta", "hf", "base", "instruct", "chat", "it"}  # on a model's shape
_NAME = re.compile(r"(?:[a-z0-9_-]+/)?([a-z0-9._ -]+)")  # an organisation may stand before it
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
