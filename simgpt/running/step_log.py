"""What a run writes as it goes: a line of JSON for each step, and events for TensorBoard."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpt import options
from topologies.files.writing import failed, line_by_line

if TYPE_CHECKING:
    from executor.launching.task_specs import Job

Entry = dict[str, Any]
Sink = Callable[[Entry], None]
KEYS = ("step", "loss", "grad_norm", "lr", "seconds", "peak_bytes")


def check_tensorboard(folder: Path | None) -> None:
    """Refuse `--tensorboard` without the package, saying how to get it."""
    from executor.errors import LaunchError

    if folder is not None and importlib.util.find_spec("tensorboard") is None:
        raise LaunchError(
            "--tensorboard needs the package tensorboard; `pip install 'simgpt[tensorboard]'` "
            "brings it"
        )


def entry_of(step: Entry, job: Job, predicted_s: float | None) -> Entry:
    """A step's line: what rank 0 reports of it, and what follows."""
    tokens = job.plan.batch * job.gpt.sequence
    line = {key: step[key] for key in KEYS}
    line |= {"tokens_per_s": tokens / step["seconds"], "predicted_s": predicted_s}
    return line | ({"eval_loss": step["eval_loss"]} if "eval_loss" in step else {})


def ignored(entry: Entry) -> None:
    """Take an entry where another rank writes it."""


@contextmanager
def written_to(log: Path | None, tensorboard: Path | None) -> Iterator[Sink]:
    """What takes the entries of steps, for as long as the with statement lasts, and has each on its
    way to the disk before the next."""
    sinks: list[Sink] = []
    with ExitStack() as stack:
        if log is not None:
            line = stack.enter_context(line_by_line(log))
            sinks.append(lambda entry: line(options.compact(options.strict(entry))))
        if tensorboard is not None:
            sinks.append(stack.enter_context(_events(tensorboard)))

        def write(entry: Entry) -> None:
            for sink in sinks:
                sink(entry)

        yield write


@contextmanager
def _events(folder: Path) -> Iterator[Sink]:
    """What adds an entry's numbers to TensorBoard's events, under their names."""
    from torch.utils.tensorboard.writer import SummaryWriter

    try:
        writer = SummaryWriter(str(folder))
    except OSError as error:
        raise failed(folder, error) from None

    def add(entry: Entry) -> None:
        for key, value in entry.items():
            if key != "step" and value is not None and math.isfinite(value):
                writer.add_scalar(key, value, entry["step"])
        writer.flush()

    try:
        yield add
    finally:
        writer.close()
