"""Events for TensorBoard, which is an extra."""

from __future__ import annotations

import importlib.util
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from executor.errors import LaunchError
from topologies.files.writing import failed, piece_by_piece

Numbers = dict[str, Any]


def require_tensorboard() -> None:
    """Refuse to go on without the package, saying how to get it."""
    if importlib.util.find_spec("tensorboard") is None:
        raise LaunchError(
            "--tensorboard needs the package tensorboard; `pip install 'simgpt[tensorboard]'` "
            "brings it"
        )


@contextmanager
def events_in(folder: Path) -> Iterator[tuple[Callable[[Numbers], None], Callable[[int], None]]]:
    """What adds the numbers of a step to the events in a folder, under their names, and what takes
    back those of a step and of later ones, of which TensorBoard then shows the new ones alone.

    Written here, in the package's format: its own writer has a thread, which dies of a full disk
    with a traceback. Raises what `piece_by_piece` does.
    """
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise failed(folder, error) from None
    name = f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}"
    with piece_by_piece(folder / name) as write:
        records = RecordWriter(SimpleNamespace(write=write))

        def put(event: Any) -> None:
            records.write(event.SerializeToString())

        def add(entry: Numbers) -> None:
            values = [
                Summary.Value(tag=key, simple_value=value)
                for key, value in entry.items()
                if key != "step" and value is not None and math.isfinite(value)
            ]
            put(Event(wall_time=time.time(), step=entry["step"], summary=Summary(value=values)))

        def purge(step: int) -> None:
            start = SessionLog(status=SessionLog.START)
            put(Event(wall_time=time.time(), step=step, session_log=start))

        put(Event(wall_time=time.time(), file_version="brain.Event:2"))
        yield add, purge
