"""Published tensors as whole parameters of a program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from executor.errors import WeightsError
from executor.published.checkpoint import Checkpoint, Stored, checkpoint_of, opened
from executor.published.families import HEAD
from executor.published.names import published
from executor.published.parameter import joined
from workload.program import Program


def published_values(program: Program, path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter of a program, whole, from a checkpoint of its model, one at a time."""
    checkpoint = checkpoint_of(path, program.gpt)
    wide = torch.float64 if program.plan.training.precision == "fp64" else torch.float32
    where = published(program.gpt)
    with ExitStack() as stack:
        read = _Reader(stack)
        for name in program.layouts:
            parts = [read(checkpoint.tensors[each]) for each in where[name].names]
            whole = joined(parts, where[name])
            for each, _ in where[name].zeros:
                _check_zeros(checkpoint, each, read)
            if name == "embed.w" and program.gpt.tied:
                _check_tied(checkpoint, whole, read)
            yield name, whole.to(wide)


class _Reader:
    """Reads tensors, each file of them opened once."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._files: dict[Path, Any] = {}

    def __call__(self, stored: Stored) -> torch.Tensor:
        if stored.path not in self._files:
            self._files[stored.path] = self._stack.enter_context(opened(stored.path, "pt"))
        tensor: torch.Tensor = self._files[stored.path].get_tensor(stored.name)
        return tensor


def _check_zeros(checkpoint: Checkpoint, name: str, read: _Reader) -> None:
    """Refuse a tensor that would have an effect, and that a program does not have."""
    if name in checkpoint.tensors and bool(read(checkpoint.tensors[name]).any()):
        raise WeightsError(
            f"{checkpoint.origin}: {name} is not zero, and the model has router_bias=false"
        )


def _check_tied(checkpoint: Checkpoint, table: torch.Tensor, read: _Reader) -> None:
    """Refuse a classifier beside the table that it is said to share."""
    if HEAD in checkpoint.tensors and not torch.equal(read(checkpoint.tensors[HEAD]), table):
        raise WeightsError(
            f"{checkpoint.origin}: {HEAD} is not the embedding's table, though the model ties both"
        )
