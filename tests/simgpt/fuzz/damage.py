"""Documents and bytes, damaged by chance."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.simgpt.fuzz.values import EVIL

Path = tuple[Any, ...]
PIECES = [
    *(b"\n", b"\x00", b"\xff\xfe", b"{}", b"\n\n", b"}", b'"', b"[[[", b"NaN", b"-", b"\r\n"),
    b"\\ud800",
]


def as_toml(table: dict[str, Any]) -> str:
    """A table as TOML has it, or something like it where TOML has no such value."""
    return "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in table.items())


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value)
    return "nil" if value is None else repr(value)


def as_bytes(document: Any, *, toml: bool = False) -> bytes:
    """A document as a file; JSON escapes what UTF-8 does not have."""
    is_toml = toml and isinstance(document, dict)
    text = as_toml(document) if is_toml else json.dumps(document)
    return text.encode(errors="surrogatepass")


def leaves(document: Any, path: Path = ()) -> list[Path]:
    """The ways to all values that hold no others."""
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    found: list[Path] = []
    for key, value in inner:
        nested = isinstance(value, dict | list) and value
        found += leaves(value, (*path, key)) if nested else [(*path, key)]
    return found


def at(document: Any, way: Path) -> Any:
    """What lies there."""
    for step in way:
        document = document[step]
    return document


def mutated(rng: random.Random, document: Any, times: int, values: Sequence[Any]) -> Any:
    """A copy with some values replaced, removed, renamed or added."""
    document = json.loads(json.dumps(document))
    for _ in range(times):
        places = leaves(document) if isinstance(document, dict | list) else []
        if not places:
            return document
        *way, last = rng.choice(places)
        inside, act = at(document, tuple(way)), rng.random()
        if act < 0.65:
            inside[last] = rng.choice(values)
        elif act < 0.85:
            del inside[last]
        elif isinstance(inside, dict):
            inside[rng.choice(["nope", "value", "source", "", *EVIL[:3]])] = rng.choice(values)
        else:
            inside.append(rng.choice(values))
    return document


def chewed(rng: random.Random, content: bytes) -> bytes:
    """Bytes with pieces cut, doubled, overwritten, inserted or in another order."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        start, size = rng.randrange(len(data) + 1), rng.choice([1, 1, 2, 10, 100])
        act = rng.randrange(6)
        if act == 0:
            del data[start:]
        elif act == 1:
            del data[start : start + size]
        elif act == 2:
            data[start:start] = data[start : start + size]
        elif act == 3:
            data[start : start + size] = rng.randbytes(size)
        elif act == 4:
            data[start:start] = rng.choice(PIECES)
        else:
            lines = bytes(data).split(b"\n")
            rng.shuffle(lines)
            data = bytearray(b"\n".join(lines))
    return bytes(data)
