"""Waiting until a list alone holds a tensor."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import torch

WITHIN_S = 0.1


def await_release(tensors: Sequence[torch.Tensor], at: int) -> None:
    """Wait until nothing but a list holds one of its tensors or shares its memory, or 0.1 s.

    A thread of gloo that has ended a collective holds its tensors for a moment longer than whoever
    awaited it. Where it is the last to let go of one it frees it, which a profiler of this thread
    does not see (`allocations.py`): the tensor would count as held for the rest of the step.
    """
    until = time.monotonic() + WITHIN_S
    while _holders(tensors, at) > ALONE and time.monotonic() < until:
        os.sched_yield()


def _holders(tensors: Sequence[torch.Tensor], at: int) -> int:
    """How often one of the tensors is referred to: in Python, in C++, and its memory."""
    tensor = tensors[at]
    shared: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    uses: int = getattr(tensor, "_use_count", int)()  # torch says nothing of it, nor do its types
    return sys.getrefcount(tensor) + uses + shared


ALONE = _holders([torch.empty(1)], 0)
