"""What a run writes as it goes: a line of JSON for each step, and events for TensorBoard.

A run that goes on from a checkpoint, or is started again, takes steps once more that were written
already: their lines are cut off before the first of them is written anew. What cannot be written is
said once and costs no step; the run ends with the status for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpt import options
from topologies.errors import DiskError, OutputError
from topologies.files.reading import open_regular
from topologies.files.writing import failed, is_replaced, piece_by_piece

if TYPE_CHECKING:
    from executor.launching.task_specs import Job

Entry = dict[str, Any]
Sink = Callable[[Entry], None]
KEYS = ("step", "loss", "grad_norm", "lr", "seconds", "peak_bytes")
_LINE = re.compile(rb'\{"step":(\d{1,18}),')
_LONGEST = 1 << 16  # bytes of a line that are looked at in one piece


class Unwritten:
    """What a run could not write, by the option that asked for it."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}

    @contextmanager
    def noted(self, option: str) -> Iterator[None]:
        """Say that something was not written, the first time, and go on."""
        try:
            yield
        except OutputError as error:
            if option not in self._why:
                options.note(f"{error}; the run goes on, and ends with status 5")
            self._why[option] = str(error)

    def made_up(self, option: str) -> None:
        """Forget what was written after all."""
        self._why.pop(option, None)

    def check(self) -> None:
        """End a run that could not write something, with a status of its own."""
        for option, why in self._why.items():
            raise DiskError(f"{option}: {why}")


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
    log: Path | None, tensorboard: Path | None, unwritten: Unwritten, *, goes_on: bool = False
) -> Iterator[Sink]:
    """What takes the entries of steps, for as long as the with statement lasts, and has each on its
    way to the disk before the next. Where a run `goes_on`, behind those that are there already."""
    sinks: list[tuple[str, Sink, Callable[[int], None]]] = []
    last = -1 if not goes_on else None  # the last step that is written; None: perhaps any
    with ExitStack() as stack:
        if log is not None:
            line = stack.enter_context(piece_by_piece(log, append=goes_on))
            sinks.append(("--log", _lines_into(line), lambda step: _cut_back(log, step, line)))
        if tensorboard is not None:
            from executor.training.tensorboard import events_in

            add, purge = stack.enter_context(events_in(tensorboard))
            sinks.append(("--tensorboard", add, purge))

        def write(entry: Entry) -> None:
            nonlocal last
            again = last is None or entry["step"] <= last
            last = entry["step"]
            for option, sink, cut_back in sinks:
                with unwritten.noted(option):
                    if again:
                        cut_back(entry["step"])
                    sink(entry)

        yield write


def _lines_into(write: Callable[[bytes], None]) -> Sink:
    return lambda entry: write(options.compact(options.strict(entry)).encode())


def _cut_back(log: Path, step: int, write: Callable[[bytes], None]) -> None:
    """Cut entries of a step and of later ones off a log's end, and a line that has none; whatever
    else the file has stays."""
    if not is_replaced(log) or not log.exists():
        return
    try:
        with open(open_regular(log, os.O_RDWR), "r+b") as file:
            end, ends_line = 0, True
            while line := file.readline(_LONGEST):
                found, is_whole = _LINE.match(line), line.endswith(b"\n")
                is_later = found is not None and is_whole and int(found[1]) >= step
                if not is_later and (is_whole or not line.startswith(b'{"step":')):
                    end, ends_line = file.tell(), is_whole
            file.truncate(end)
    except OSError as error:
        raise failed(log, error) from None
    if not ends_line:
        write(b"\n")
