"""The lines of a log, one block after the other: one of hundreds of megabytes is never held whole.

A log may be compressed by gzip, of one or more parts; one that is cut off is read as far as it is
there.
"""

from __future__ import annotations

import codecs
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from topologies.files.budget import Budget
from topologies.files.printable import path_shown
from topologies.files.reading import open_regular
from validation.jobs.errors import LogError

BLOCK = 2**20  # bytes of text
PACKED_BLOCK = 2**16
MOST_TEXT = 8 * 2**30
MOST_UNPACKED = 256 * 2**20
# Lines that a log of any size may have, of blocks that hold a mark, and the mean length of all
# further ones.
FREE_LINES, LINE_BYTES, RECORD_BYTES = 250_000, 48, 16
MOST_LINE = 10_000  # characters of a line that are looked at
GZIP = b"\x1f\x8b"
GZIP_BITS = 16 + zlib.MAX_WBITS  # of zlib: with gzip's own head
# Of text that gzip makes of a file: so much, and so many times its size.
FREE, TIMES = 32 * 2**20, 40


def most_unpacked(file: IO[bytes]) -> int:
    """Bytes that a compressed file may hold: gzip makes a tenth of logs and traces, and a
    thousandth of a single letter."""
    return FREE + TIMES * os.fstat(file.fileno()).st_size


def lines_of(
    path: Path,
    *marks: str,
    longest: int = MOST_LINE,
    most: int = MOST_TEXT,
    mean: int = LINE_BYTES,
) -> Iterator[str]:
    """The lines of a file's first `most` bytes with their ends, of each its first `longest`
    characters; with `marks` those of blocks alone that hold one of them. Errors are a LogError."""
    budget = Budget(path_shown(path), "lines", FREE_LINES, LogError)
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    begun, taken = "", 0
    for block in blocks_of(path):
        taken += len(block)
        if taken > most:
            return
        text = begun + decoder.decode(block, final=not block)
        begun = ""
        budget.most += len(block) // mean
        if marks and block and not any(map(text.__contains__, marks)):
            begun = text[max(text.rfind("\n"), text.rfind("\r")) + 1 :][:longest]
            continue
        lines = text.splitlines(keepends=True)
        if block and lines and not lines[-1].endswith("\n"):
            begun = lines.pop()[:longest]
        budget.charge(len(lines))
        yield from (line[:longest] for line in lines)


def blocks_of(path: Path) -> Iterator[bytes]:
    """The bytes of a file, those that gzip has compressed unpacked, and an empty block at last."""
    with open(open_regular(path), "rb") as file:
        packed = file.read(len(GZIP)) == GZIP
        file.seek(0)
        most = min(MOST_UNPACKED, most_unpacked(file)) if packed else MOST_TEXT
        budget = Budget(path_shown(path), "bytes of text", most, LogError)
        for block in _unpacked(file, path) if packed else iter(lambda: file.read(BLOCK), b""):
            budget.charge(len(block))
            if block:
                yield block
    yield b""


def _unpacked(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Blocks of all that gzip has compressed; what follows the last part is left out."""
    part, packed = zlib.decompressobj(wbits=GZIP_BITS), b""
    try:
        while packed := packed or file.read(PACKED_BLOCK):
            yield part.decompress(packed, BLOCK)
            packed = part.unconsumed_tail
            if part.eof:
                packed = part.unused_data + file.read(len(GZIP))
                if not packed.startswith(GZIP):
                    return
                part = zlib.decompressobj(wbits=GZIP_BITS)
        yield part.flush()
    except zlib.error:
        raise LogError(f"{path_shown(path)} is compressed by gzip, and damaged") from None
