"""Megatron's indexed datasets: tokens in PREFIX.bin, and what documents they make in PREFIX.idx.

The index, all of it little-endian: 9 bytes of magic; the version, 8 bytes; the code of the tokens'
type, 1 byte; the number of sequences S and of document boundaries D, 8 bytes each; then S lengths
in tokens (int32), S places in bytes (int64), D boundaries as numbers of sequences (int64).
Source: NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py.
"""

from __future__ import annotations

import os
import struct

import numpy as np

from executor.data.tokens import Numbers, Tokens, mapped
from executor.errors import TextError
from topologies.records import record

MAGIC, VERSION = b"MMIDIDX\x00\x00", 1
HEAD = struct.Struct("<QBQQ")
TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
FLOATS = {6: "float64", 7: "float32"}


@record
class Index:
    """What an index says: the type of the tokens, and of each sequence its length and place."""

    dtype: str
    lengths: Numbers
    pointers: Numbers


def is_indexed(path: str) -> bool:
    """Whether a path names an indexed dataset, by its prefix or by either of its files.

    A .bin is never taken for text, lest a lost index go unnoticed.
    """
    if path.endswith((".bin", ".idx")):
        return True
    return os.path.exists(f"{path}.idx") and not os.path.isfile(path)


def prefix_of(path: str) -> str:
    """What the names of both files begin with."""
    return path[:-4] if path.endswith((".bin", ".idx")) else path


def read_indexed(path: str) -> Tokens:
    """The tokens of all documents, one behind the other, mapped and not read.

    As they stand in the file: Megatron shuffles documents before it joins them.
    """
    prefix = prefix_of(path)
    index, tokens = read_index(f"{prefix}.idx"), mapped(f"{prefix}.bin")
    size, total = np.dtype(index.dtype).itemsize, int(index.lengths.sum(dtype=np.int64))
    starts = np.cumsum(index.lengths, dtype=np.int64) - index.lengths
    if not np.array_equal(index.pointers, starts * size):
        raise TextError(f"{prefix}.idx: its sequences do not stand one behind the other")
    if len(tokens) < total * size:
        raise TextError(
            f"{prefix}.bin has {len(tokens)} bytes, but its index counts {total} tokens of {size}"
        )
    return Tokens(f"{prefix}.bin", np.frombuffer(tokens, index.dtype, total) if total else _none())


def read_index(path: str) -> Index:
    """The index in a file, or a TextError that says what is wrong with it."""
    held = mapped(path)
    begin = len(MAGIC) + HEAD.size
    if bytes(held[: len(MAGIC)]) != MAGIC or len(held) < begin:
        raise TextError(f"{path} is not an index of Megatron's: it does not begin with MMIDIDX")
    version, code, sequences, boundaries = HEAD.unpack(held[len(MAGIC) : begin])
    if version != VERSION:
        raise TextError(f"{path} has version {version}; {VERSION} is known")
    if code not in TYPES:
        raise TextError(f"{path} says that tokens are of the type {FLOATS.get(code, code)}")
    needed = begin + 12 * sequences + 8 * boundaries
    if len(held) < needed:
        raise TextError(
            f"{path} has {len(held)} bytes; {sequences} sequences and {boundaries} boundaries of "
            f"documents take {needed}"
        )
    lengths = np.frombuffer(held, "<i4", sequences, begin)
    pointers = np.frombuffer(held, "<i8", sequences, begin + 4 * sequences)
    ends = np.frombuffer(held, "<i8", boundaries, begin + 12 * sequences)
    if (lengths < 0).any() or (boundaries and ends[-1] != sequences):
        raise TextError(f"{path}: its documents do not end with its {sequences} sequences")
    return Index(TYPES[code], lengths, pointers)


def _none() -> Numbers:
    return np.zeros(0, dtype=np.int64)
