"""What a run writes as it goes: a line of JSON for each step, and events for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpt import options
from topologies.files.writing import line_by_line

if TYPE_CHECKING:
    from executor.launching.task_specs import Job

Entry = dict[str, Any]
Sink = Callable[[Entry], None]
KEYS = ("step", "loss", "grad_norm", "lr", "seconds", "peak_bytes")


def entry_of(step: Entry, job: Job, predicted_s: float | None) -> Entry:
    """A step's line: what rank 0 reports of it, and what follows."""
    tokens = job.plan.batch * job.gpt.sequence
    line = {key: step[key] for key in KEYS}
    line |= {"tokens_per_s": tokens / step["seconds"], "predicted_s": predicted_s}
    return line | ({"eval_loss": step["eval_loss"]} if "eval_loss" in step else {})


def ignored(entry: Entry) -> None:
    """Take an entry where another rank writes it."""


@contextmanager
def written_to(
    log: Path | None, tensorboard: Path | None, *, goes_on: bool = False
) -> Iterator[Sink]:
    """What takes the entries of steps, for as long as the with statement lasts, and has each on its
    way to the disk before the next. Where a run `goes_on`, behind those that are there already."""
    sinks: list[Sink] = []
    with ExitStack() as stack:
        if log is not None:
            line = stack.enter_context(line_by_line(log, append=goes_on))
            sinks.append(lambda entry: line(options.compact(options.strict(entry))))
        if tensorboard is not None:
            from executor.training.tensorboard import events_in

            sinks.append(stack.enter_context(events_in(tensorboard)))

        def write(entry: Entry) -> None:
            for sink in sinks:
                sink(entry)

        yield write
