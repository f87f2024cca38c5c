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
from math import prod
from pathlib import Path
from typing import Any

import torch

from executor.checkpoints.errors import DamagedCheckpointError
from executor.checkpoints.manifest import Written
from topologies.files.printable import path_shown, shown
from topologies.files.reading import TABLE_BYTES, open_regular

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
HEADER_BYTES = TABLE_BYTES  # at most; a tensor takes some hundred


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


def digest_of(path: Path, nbytes: int | None = None) -> Written:
    """A regular file as it is found; of one that is not of `nbytes`, if given, no byte is read."""
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if nbytes is not None and size != nbytes:
            return Written(size, "")
        digest = hashlib.file_digest(file, "sha256")
        return Written(file.tell(), digest.hexdigest())


class TensorFile:
    """A file of tensors, mapped: `tensors[name]` copies one of them. A DamagedCheckpointError says
    what of its header cannot be."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with open(open_regular(path), "rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            length = int.from_bytes(self._bytes[:LENGTH_BYTES], "little")
            self._start = LENGTH_BYTES + length
            if not 0 < length <= min(len(self._bytes) - LENGTH_BYTES, HEADER_BYTES):
                raise ValueError(length)
            self._entries: dict[str, Any] = json.loads(self._bytes[LENGTH_BYTES : self._start])
        except (OSError, ValueError, RecursionError):
            message = f"{path_shown(path)} is not a file of tensors"
            raise DamagedCheckpointError(message) from None

    def __getitem__(self, name: str) -> torch.Tensor:
        dtype, shape, first, last = self._entry(name)
        tensor = torch.empty(shape, dtype=dtype)
        if prod(shape):
            _bytes_of(tensor)[:] = self._bytes[self._start + first : self._start + last]
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one of them."""
        return self._entry(name)[1]

    def _entry(self, name: str) -> tuple[torch.dtype, tuple[int, ...], int, int]:
        """What the header says of a tensor that is in the file: its type, its shape, its place."""
        try:
            entry = self._entries[name]
            dtype, shape = DTYPES[entry["dtype"]], (*entry["shape"],)
            first, last = entry["data_offsets"]
            if not all(type(number) is int and number >= 0 for number in (first, last, *shape)):
                raise ValueError(name)
            held = len(self._bytes) - self._start
            if last - first != prod(shape) * dtype.itemsize or last > held:
                raise ValueError(name)
        except (KeyError, TypeError, ValueError):
            message = f"{path_shown(self._path)} does not hold {shown(name)} as its header should"
            raise DamagedCheckpointError(f"{message} say") from None
        return dtype, shape, first, last


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
