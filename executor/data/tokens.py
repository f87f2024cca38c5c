"""Tokens in order: of a file that is mapped, or of a text."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.errors import TextError
from topologies.records import record

Text = bytes | mmap.mmap
Numbers = NDArray[Any]
FIRST = 1 << 24  # tokens that are looked at before a run; the others as they are trained on


@record
class Tokens:
    """All tokens of a source, which messages call `name`; `values` may be mapped from a file."""

    name: str
    values: Numbers

    def samples(self, sequence: int) -> int:
        """How many windows of sequence + 1 tokens there are, each from its neighbour's last."""
        return max(len(self.values) - 1, 0) // sequence

    def windows(self, numbers: Numbers, sequence: int) -> Numbers:
        """The windows of these numbers, (windows, sequence + 1)."""
        places = numbers.astype(np.int64)[:, None] * sequence + np.arange(sequence + 1)
        found: Numbers = self.values[places].astype(np.int64)
        return found

    def check(self, vocab: int, model: str) -> None:
        """Refuse a token among the first that the model has no row for."""
        check_vocabulary(self.values[:FIRST], vocab, self.name, model)


def check_vocabulary(values: Numbers, vocab: int, name: str, model: str) -> None:
    """Refuse tokens that a vocabulary of so many does not have."""
    if not values.size or (int(values.min()) >= 0 and int(values.max()) < vocab):
        return
    wrong = int(values.max()) if int(values.max()) >= vocab else int(values.min())
    raise TextError(
        f"{name} has the token {wrong}; {model} has vocab={vocab}, so tokens are 0 to {vocab - 1}"
    )


def mapped(path: str) -> Text:
    """The bytes of a regular file, mapped: only the pages that are touched are ever in memory."""
    try:
        # Opened without waiting: a FIFO would keep its reader until somebody writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return _mapped(path, descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise TextError(f"cannot read the text {path}: {error.strerror}") from None


def _mapped(path: str, descriptor: int) -> Text:
    found = os.fstat(descriptor)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise TextError(f"cannot read the text {path}: it is not a regular file")
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if found.st_size else b""
