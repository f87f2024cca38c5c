"""Tensors that lie on a GPU by name and have shapes but no values, on a machine without one.

torch's fake tensors do all that; but where torch was built without CUDA, the Python bindings of
indexing, of `copy_` and of `contiguous` ask a driver for the tensor's device before they dispatch
anything. Here they are made of the operators that they end in. The fused SGD has no fake kernel; it
works in place, and so nothing stands for it. Seen with PyTorch 2.13.
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
    methods = {
        **{"__getitem__": part_of, "__setitem__": _set_part},
        **{"copy_": _copy, "contiguous": _contiguous},
    }
    with ExitStack() as stack:
        for name, method in methods.items():
            stack.enter_context(patch.object(FakeTensor, name, method))
        stack.enter_context(patch.object(torch, "_fused_sgd_", _in_place))
        stack.enter_context(FakeTensorMode())
        yield


def part_of(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """What `tensor[index]` is, of numbers, slices, None, an ellipsis, and tensors of numbers."""
    view, chosen = _chosen(tensor, index)
    part: torch.Tensor = _ATEN.index(view, chosen) if chosen else view
    return part


def _chosen(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """The view that an index leaves but for its tensors, and these by their dimensions, if there
    are any."""
    parts = index if isinstance(index, tuple) else (index,)
    chosen: list[torch.Tensor | None] = []
    for part in _without_ellipsis(parts, tensor.dim()):
        dim = len(chosen)
        if part is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(part, slice):
            start, stop, step = part.indices(tensor.shape[dim])
            tensor = _ATEN.slice(tensor, dim, start, max(start, stop), step)
        elif not isinstance(part, torch.Tensor):
            tensor = tensor.select(dim, part)
            continue
        chosen.append(part if isinstance(part, torch.Tensor) else None)
    return tensor, chosen if any(part is not None for part in chosen) else []


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
    view, chosen = _chosen(tensor, index)
    if chosen:
        new = value if isinstance(value, torch.Tensor) else view.new_full((), value)
        _ATEN.index_put_(view, chosen, new)
    elif isinstance(value, torch.Tensor):
        view.copy_(value)
    else:
        view.fill_(value)


def _copy(tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    copied: torch.Tensor = _ATEN.copy_(tensor, source, non_blocking)
    return copied


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_contiguous():
        return tensor
    made: torch.Tensor = _ATEN.clone(tensor, memory_format=torch.contiguous_format)
    return made


def _in_place(*operands: object, **how: object) -> None:
    """An operator that makes no tensor."""
