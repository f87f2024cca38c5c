"""Indexed datasets as Megatron's own builder writes them, for tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def write_indexed(prefix: Path, documents: Sequence[Sequence[int]], dtype: str = "uint16") -> str:
    """Write PREFIX.bin and PREFIX.idx, one sequence a document; returns the prefix."""
    lengths = [len(each) for each in documents]
    size = np.dtype(dtype).itemsize
    pointers = [sum(lengths[:at]) * size for at in range(len(lengths))]
    index = b"MMIDIDX\x00\x00" + struct.pack(
        "<QBQQ", 1, CODES[dtype], len(lengths), len(lengths) + 1
    )
    index += struct.pack(f"<{len(lengths)}i", *lengths)
    index += struct.pack(f"<{len(lengths)}q", *pointers)
    index += struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1))
    Path(f"{prefix}.idx").write_bytes(index)
    tokens = [token for each in documents for token in each]
    Path(f"{prefix}.bin").write_bytes(np.asarray(tokens, dtype=dtype).tobytes())
    return str(prefix)
