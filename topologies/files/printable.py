"""Text of users as a terminal may have it: no control characters, and no endless words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MOST_NAME = 80
MOST_WORD = 240  # above any plan's text
MOST_SENTENCE = 2000
_LONG = re.compile(rf"\S{{{MOST_WORD + 1},}}")


def printable(text: str, keep: str = "") -> str:
    """The text with every character escaped that is not printed but obeyed, or cannot be written.

    These are control characters, line separators, marks of direction and lone surrogates; `keep`
    has those to leave.

    >>> printable("a\\x1b[2Jb\\nc", keep="\\n")
    'a\\\\x1b[2Jb\\nc'
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else _escaped(each) for each in text)


def shown(name: object, most: int = MOST_NAME) -> str:
    """A name on one line, printable, and cut in its middle if it is longer than `most`.

    >>> shown("x" * 5000, 9)
    'xxxx…xxxx'
    """
    text = printable(str(name))
    cut = f"{text[: most // 2]}…{text[len(text) - (most - 1) // 2 :]}"
    return text if len(text) <= most else cut


def path_shown(path: object) -> str:
    """A path on one line, printable, and whole unless it is longer than any that one writes."""
    return shown(path, MOST_WORD)


def sentence(text: str) -> str:
    """An error as one printable line, in which no word is so long that it hides the others.

    >>> sentence("no model is called\\n" + "x" * 5000)[:24]
    'no model is called xxxxx'
    """
    words = _LONG.sub(lambda word: shown(word[0]), text)
    return shown(" ".join(words.split()), MOST_SENTENCE)


def toml_text(document: Mapping[str, Any]) -> str:
    """The TOML that reads as a document, in which escapes stand for what is not printed.

    >>> print(toml_text({"nodes": {"value": 8, "source": "a\\x85"}}), end="")
    [nodes]
    value = 8
    source = "a\\U00000085"
    """
    import tomli_w

    text = tomli_w.dumps(document)
    return "".join(c if c.isprintable() or c == "\n" else f"\\U{ord(c):08x}" for c in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
