"""The training text: any regular file's bytes, checked before a rank starts."""

from __future__ import annotations

import errno
import mmap
import os
import pydoc_data.topics
import stat

from executor.errors import TextError
from workload.gpt import GPT

BYTES = 256
Text = bytes | mmap.mmap


def read_text(path: str | None) -> Text:
    """The text's bytes; without a path the language reference that ships with Python.

    A file is mapped, not read: only the pages that batches touch are ever in memory.
    """
    if path is None:
        return "\n".join(pydoc_data.topics.topics.values()).encode()
    try:
        return _mapped(path)
    except OSError as error:
        raise TextError(f"cannot read the text {path}: {error.strerror}") from None


def _mapped(path: str) -> Text:
    # Opened without waiting: a FIFO would keep its reader until somebody writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(found.st_mode):
            raise TextError(f"cannot read the text {path}: it is not a regular file")
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if found.st_size else b""
    finally:
        os.close(descriptor)


def check_text(text: Text, gpt: GPT) -> None:
    """Refuse a text that is too short, or a vocabulary that cannot hold a byte."""
    if gpt.vocab < BYTES:
        raise TextError(f"{gpt.name} has vocab={gpt.vocab}; byte tokens need at least {BYTES}")
    if len(text) <= gpt.sequence:
        raise TextError(
            f"the text has {len(text)} bytes; one sequence of {gpt.name} needs "
            f"{gpt.sequence + 1} (sequence={gpt.sequence} and a target)"
        )
