"""Data by their content, so that a run that goes on knows them again under any name."""

from __future__ import annotations

import hashlib

from executor.data.corpus import read_text
from executor.data.dataset import mixture_of
from executor.data.indexed import is_indexed, prefix_of
from executor.data.sources import mixed
from executor.data.tokenized import FILE
from executor.data.tokens import Text, mapped

WHOLE_BYTES = 1 << 28  # up to which a file is read whole: some tenths of a second
PIECES, PIECE_BYTES = 256, 1 << 20  # of a longer one, evenly spread from its first byte to its last


def text_digest(text: str | None) -> str:
    """The SHA-256 of what `--data` names: its files, and the order in which samples are taken from
    several. A file longer than `WHOLE_BYTES` counts by its length and by `PIECES` of it.
    """
    weighted = mixed(text) if text is not None else None
    if weighted is None:
        return _digest_of(text)
    digest = hashlib.sha256(mixture_of([weight for _, weight in weighted]).order.tobytes())
    for path, _ in weighted:
        digest.update(_digest_of(path).encode())
    return digest.hexdigest()


def tokenizer_digest(tokenizer: str | None) -> str | None:
    """The SHA-256 of a tokenizer's file; None where bytes are the tokens."""
    return None if tokenizer is None else hashlib.sha256(FILE.content(tokenizer)).hexdigest()


def _digest_of(path: str | None) -> str:
    if path is None or not is_indexed(path):
        return _content_digest(read_text(path))
    parts = (_content_digest(mapped(f"{prefix_of(path)}.{end}")) for end in ("bin", "idx"))
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _content_digest(content: Text) -> str:
    with memoryview(content) as held:
        if len(held) <= WHOLE_BYTES:
            return hashlib.sha256(held).hexdigest()
        digest, last = hashlib.sha256(str(len(held)).encode()), len(held) - PIECE_BYTES
        for number in range(PIECES):
            start = last * number // (PIECES - 1)
            digest.update(held[start : start + PIECE_BYTES])
        return digest.hexdigest()
