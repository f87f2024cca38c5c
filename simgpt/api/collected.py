"""Where the answer of a command goes that Python asked for, and not a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import click

from topologies.records import record


@record(slots=False)
class Collected:
    """What a command answers, says beside its answer and writes, while it is the object of the
    command's context: text and JSON record of the answer, notes, and paths of files.

    A text that nobody has read yet is a function that makes it. `words` are those of the command
    line that asks the same.
    """

    words: Sequence[str]
    answers: list[tuple[str | Callable[[], str], dict[str, Any]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)


def collecting() -> Collected | None:
    """What the running command's answer is collected in; None for a command of the terminal."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.find_object(Collected)
