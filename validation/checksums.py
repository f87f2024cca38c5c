"""Checksums of the rows of a sweep, so that a row that changed on a disk is not believed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

CHECKSUM = "checksum"  # a row's key
DIGITS = 16  # hexadecimal; one changed row in 2^64 goes unseen


def checksum_of(row: Mapping[str, Any]) -> str:
    """The first digits of SHA-256 over all that a row says, its checksum aside.

    >>> checksum_of({"id": 1, "checksum": "?"}) == checksum_of({"id": 1}) != checksum_of({"id": 2})
    True
    """
    content = {key: value for key, value in row.items() if key != CHECKSUM}
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]
