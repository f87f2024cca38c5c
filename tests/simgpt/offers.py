"""What a message offers in place of a plan, in whatever words."""

from __future__ import annotations

import re

from workload.plan_text import ALIASES

WORD = r"\w+=[^\s,;()`]+"


def changes_in(text: str) -> list[str]:
    """The changes of a plan that a text has, as key=value,key=value, with keys of a plan."""
    found = re.findall(rf"{WORD}(?:,{WORD})*", text)
    return [",".join(map(_plain, change.split(","))) for change in found]


def times_in(text: str) -> list[str]:
    """The numbers with a unit that begin a parenthesis, as each change has its time."""
    return re.findall(r"\(([\d.,]+ \w+)", text)


def _plain(word: str) -> str:
    key, _, value = word.partition("=")
    return f"{ALIASES.get(key, key)}={value}"
