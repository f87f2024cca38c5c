"""Tensors that lie on a GPU by name and have shapes but no values, on a machine without one.

torch's fake tensors do all that; but where torch was built without CUDA, the Python bindings of
indexing and of `copy_` ask a driver for the tensor's device before they dispatch anything. Here
both are made of the operators that they end in. Seen with PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

GPU = torch.device("cuda", 0)
_ATEN: Any = torch.ops.aten


@contextmanager
def fake_gpu() -> Iterator[None]:
    """Make every tensor that is made in here a fake one."""
    methods = {"__getitem__": part_of, "__setitem__": _set_part, "copy_": _copy}
    with ExitStack() as stack:
        for name, method in methods.items():
            stack.enter_context(patch.object(FakeTensor, name, method))
        stack.enter_context(FakeTensorMode())
        yield


def part_of(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """What `tensor[index]` is, of numbers, slices, None, an ellipsis, and one tensor at most."""
    parts = index if isinstance(index, tuple) else (index,)
    dim = 0
    for part in _without_ellipsis(parts, tensor.dim()):
        if part is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(part, slice):
            start, stop, step = part.indices(tensor.shape[dim])
            tensor = _ATEN.slice(tensor, dim, start, max(start, stop), step)
        elif isinstance(part, torch.Tensor):
            tensor = _ATEN.index(tensor, [None] * dim + [part])
        else:
            tensor = tensor.select(dim, part)
            continue
        dim += 1
    return tensor


def _without_ellipsis(parts: tuple[Any, ...], dims: int) -> list[Any]:
    """Whole slices in the place of an ellipsis."""
    found: list[Any] = []
    for part in parts:
        if part is Ellipsis:
            taken = sum(other is not None for other in parts) - 1
            found.extend([slice(None)] * (dims - taken))
        else:
            found.append(part)
    return found


def _set_part(tensor: torch.Tensor, index: Any, value: torch.Tensor | float) -> None:
    part = part_of(tensor, index)
    if isinstance(value, torch.Tensor):
        part.copy_(value)
    else:
        part.fill_(value)


def _copy(tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    copied: torch.Tensor = _ATEN.copy_(tensor, source, non_blocking)
    return copied
