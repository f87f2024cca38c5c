"""The training text: any regular file's bytes, checked before a rank starts."""

from __future__ import annotations

import pydoc_data.topics

from executor.data.tokens import Text, mapped
from executor.errors import TextError
from workload.gpt import GPT

BYTES = 256


def read_text(path: str | None) -> Text:
    """The text's bytes; without a path the language reference that ships with Python.

    A file is mapped, not read: only the pages that batches touch are ever in memory.
    """
    if path is None:
        return "\n".join(pydoc_data.topics.topics.values()).encode()
    return mapped(path)


def check_text(text: Text, gpt: GPT) -> None:
    """Refuse a text that is too short, or a vocabulary that cannot hold a byte."""
    if gpt.vocab < BYTES:
        raise TextError(f"{gpt.name} has vocab={gpt.vocab}; byte tokens need at least {BYTES}")
    if len(text) <= gpt.sequence:
        raise TextError(
            f"the text has {len(text)} bytes; one sequence of {gpt.name} needs "
            f"{gpt.sequence + 1} (sequence={gpt.sequence} and a target)"
        )
