"""What click says of wrong values, in plain words."""

from __future__ import annotations

import re

_RANGE = re.compile(r"is not in the range (\d+)<=x<=(\d+)")
_KINDS = {"integer range": "whole number", "float range": "number"}


def plain_words(said: str) -> str:
    """What click says of a value, in plain words.

    >>> plain_words("0 is not in the range 1<=x<=4096")
    '0 is not from 1 to 4,096'
    >>> plain_words("'x' is not a valid integer range")
    "'x' is not a whole number"
    """
    for clicks, ours in _KINDS.items():
        said = said.replace(f"is not a valid {clicks}", f"is not a {ours}")
    return _RANGE.sub(lambda each: f"is not from {int(each[1]):,} to {int(each[2]):,}", said)
