"""Events for TensorBoard, which is an extra."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from executor.errors import LaunchError
from topologies.files.writing import failed


def require_tensorboard() -> None:
    """Refuse to go on without the package, saying how to get it."""
    if importlib.util.find_spec("tensorboard") is None:
        raise LaunchError(
            "--tensorboard needs the package tensorboard; `pip install 'simgpt[tensorboard]'` "
            "brings it"
        )


@contextmanager
def events_in(folder: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What adds the numbers of a step to the events in a folder, under their names."""
    from torch.utils.tensorboard.writer import SummaryWriter

    try:
        writer = SummaryWriter(str(folder))
    except OSError as error:
        raise failed(folder, error) from None

    def add(entry: dict[str, Any]) -> None:
        for key, value in entry.items():
            if key != "step" and value is not None and math.isfinite(value):
                writer.add_scalar(key, value, entry["step"])
        writer.flush()

    try:
        yield add
    finally:
        writer.close()
