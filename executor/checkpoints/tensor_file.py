"""A rank's tensors in one file, in the safetensors format: lengths and names as JSON, then bytes.

Any reader of that format opens it. It is written here, not by the library of that name, so that the
digest is taken while the bytes pass and a full disk is an OSError; it is read through a memory map,
so that a rank which needs one tensor reads that one alone.
Source of the format: github.com/huggingface/safetensors, README, section "Format".
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from executor.checkpoints.errors import DamagedCheckpointError

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.uint8: "U8",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
LENGTH_BYTES = 8  # of the header's length, little-endian
ALIGNMENT = 8  # of the first tensor; the header is filled up with blanks
CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Written:
    """A file as it should be found again: how long it is, and the SHA-256 of its bytes."""

    nbytes: int
    sha256: str


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> Written:
    """Write tensors of the host's memory into a new file, down to the disk."""
    digest, nbytes = hashlib.sha256(), 0
    with open(path, "xb", buffering=0) as file:
        for chunk in _chunks(tensors):
            digest.update(chunk)
            nbytes += len(chunk)
            left = chunk
            while left:
                left = left[file.write(left) :]
        os.fsync(file.fileno())
    return Written(nbytes, digest.hexdigest())


def digest_of(path: Path) -> Written:
    """A file as it is found."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return Written(file.tell(), digest.hexdigest())


class TensorFile:
    """A file of tensors, mapped: `tensors[name]` copies one of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with open(path, "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        length = int.from_bytes(self._bytes[:LENGTH_BYTES], "little")
        self._start = LENGTH_BYTES + length
        self._entries: dict[str, Any] = json.loads(self._bytes[LENGTH_BYTES : self._start])

    def __getitem__(self, name: str) -> torch.Tensor:
        try:
            entry = self._entries[name]
            dtype, shape = DTYPES[entry["dtype"]], [int(size) for size in entry["shape"]]
            first, last = entry["data_offsets"]
            tensor = torch.empty(shape, dtype=dtype)
            if last - first != tensor.nbytes or self._start + last > len(self._bytes):
                raise ValueError(name)
        except (KeyError, TypeError, ValueError):
            message = f"{self._path} does not hold {name} as its header should say"
            raise DamagedCheckpointError(message) from None
        if prod(shape):
            _bytes_of(tensor)[:] = self._bytes[self._start + first : self._start + last]
        return tensor


def _chunks(tensors: Mapping[str, torch.Tensor]) -> Iterator[memoryview]:
    entries, start = {}, 0
    for name, tensor in tensors.items():
        end = start + tensor.nbytes
        about = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape)}
        entries[name] = {**about, "data_offsets": [start, end]}
        start = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % ALIGNMENT)
    yield memoryview(len(header).to_bytes(LENGTH_BYTES, "little") + header)
    for tensor in tensors.values():
        if tensor.numel():
            content = _bytes_of(tensor)
            for first in range(0, len(content), CHUNK_BYTES):
                yield content[first : first + CHUNK_BYTES]


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the host, not copied."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
