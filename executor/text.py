"""The training text: any file's bytes, checked before a rank starts."""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path

from executor.errors import TextError
from workload.gpt import GPT

BYTES = 256


def read_text(path: str | None) -> bytes:
    """The text's bytes; without a path the language reference that ships with Python."""
    if path is None:
        return "\n".join(pydoc_data.topics.topics.values()).encode()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TextError(f"cannot read the text {path}: {error.strerror}") from None


def check_text(text: bytes, gpt: GPT) -> None:
    """Refuse a text that is too short, or a vocabulary that cannot hold a byte."""
    if gpt.vocab < BYTES:
        raise TextError(f"{gpt.name} has vocab={gpt.vocab}; byte tokens need at least {BYTES}")
    if len(text) <= gpt.sequence:
        raise TextError(
            f"the text has {len(text)} bytes; one sequence of {gpt.name} needs "
            f"{gpt.sequence + 1} (sequence={gpt.sequence} and a target)"
        )
