"""Which class of compute or kind of communication a kernel belongs to, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from topologies.files.reading import shipped_toml
from validation.jobs.anatomy import ELEMENTWISE, MESSAGES, Communicator

LIBRARIES = ("nccl", "rccl", "gloo:")  # in the names of what communicates on the device
ISSUED = "c10d::"  # the op that hands a collective to another thread, or to the device
SIZE = "Group size"  # of the arguments that torch.profiler gives a kernel of NCCL
UNKNOWN = "other communication"


def kernel_class(name: str, arguments: Mapping[str, Any]) -> str | Communicator:
    """The class of a device's kernel or of a host's op, or the communicator it serves.

    >>> kernel_class("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", {})
    'matmul'
    >>> str(kernel_class("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgs)", {"Group size": 8}))
    'all_gather of 8'
    """
    word = name.lower()
    if any(library in word for library in LIBRARIES):
        kind = _first("communication", "kind", word) or UNKNOWN
        size = arguments.get(SIZE)
        is_size = isinstance(size, int) and not isinstance(size, bool) and kind != MESSAGES
        return Communicator(kind, max(int(size or 0), 0) if is_size else 0)
    return _first("class", "name", word) or ELEMENTWISE


def _first(table: str, key: str, word: str) -> str:
    entries = _names()[table]
    return next((str(e[key]) for e in entries if any(w in word for w in e["words"])), "")


@cache
def _names() -> dict[str, Any]:
    return shipped_toml("validation", "jobs/kernel_names.toml")
