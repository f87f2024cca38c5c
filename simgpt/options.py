"""Options that several commands share, and how a command's answer leaves it."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from simgpt.api.collected import collecting
from simgpt.stderr import tell
from topologies.errors import DiskError
from topologies.files.printable import printable
from topologies.files.writing import failed, is_replaced, write_whole
from topologies.machine import Machine, machine_from_dict
from topologies.machine_files import load_machine, rate_words, with_settings

Command = TypeVar("Command", bound=Callable[..., Any])
LONGEST_S = 1e6  # some eleven days, which torch still takes for a timeout
MOST_THREADS = 1024


class NewFile(click.Path):
    """A file to write; refused before the work rather than after it if its folder is not there."""

    name = "file"

    def __init__(self, *suffixes: str) -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self._suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not str(value):
            self.fail("the file to write has no name", param, ctx)
        folder = Path(os.path.realpath(path)).parent
        replaced = is_replaced(path)  # by a file beside it
        if self._suffixes and path.suffix not in self._suffixes:
            self.fail(f"{path} must end in {' or '.join(self._suffixes)}", param, ctx)
        if replaced and not os.path.isdir(folder):
            self.fail(f"cannot write {path}: there is no folder {folder}", param, ctx)
        wanted = [path] * os.path.exists(path) + [folder] * replaced
        if not all(os.access(each, os.W_OK) for each in wanted):
            self.fail(f"cannot write {path}: permission denied", param, ctx)
        return path


class Number(click.FloatRange):
    """A finite number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


def comparing_options(tolerance: float, whose: str) -> Callable[[Command], Command]:
    """Give a command that runs steps here what it measures and compares with.

    `whose` names the errors whose mean the tolerance bounds.
    """

    def give(function: Command) -> Command:
        for option in (answer_options, timeout_option, threads_option):
            function = option(function)
        function = click.option(
            "--tolerance",
            type=Number(min=0),
            default=tolerance,
            show_default=True,
            help=f"Mean absolute error allowed{whose}.",
        )(function)
        text = "A calibrated machine file; without it, calibrates first."
        return click.option("-m", "--machine", help=text)(function)

    return give


def answer_options(function: Command) -> Command:
    """Give a command --json and -o."""
    function = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(
        function
    )
    return click.option(
        "-o", "--output", type=NewFile(), help="Write the answer to a file; FILE.json gets JSON."
    )(function)


threads_option = click.option(
    "--threads",
    type=click.IntRange(1, MOST_THREADS),
    default=1,
    show_default=True,
    help="Threads that each rank computes with.",
)
device_option = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="What ranks compute on; auto: GPUs, if each rank here has its own.",
)
timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=Number(min=1, max=LONGEST_S),
    default=300.0,
    show_default=True,
    help="Seconds that ranks may be silent for.",
)


def answer(
    text: str | Callable[[], str],
    record: dict[str, Any],
    *,
    as_json: bool,
    output: Path | None,
    is_file: bool = False,
) -> None:
    """Print a command's answer, as text or as its JSON record, or write it to a file, which gets
    JSON where it is called so, unless the text is itself a file of some framework; the caller has
    both where it is Python. A text that is a function is made only if somebody reads it."""
    if (asker := collecting()) is not None:
        asker.answers.append((text, strict(record)))
        return
    if as_json or (is_json(output) and not is_file):
        content = json.dumps(strict(record), indent=2)
    else:
        read = text if isinstance(text, str) else text()
        content = printable(read.rstrip("\n"), keep="\n")
    if output is None:
        say(content)
    else:
        write(output, content + "\n")
        note(f"wrote {output}")


def is_json(output: Path | None) -> bool:
    """Whether a file that gets an answer is called JSON."""
    return output is not None and output.suffix == ".json"


def check_apart(
    output: Path | None, other: Path | None, option: str = "--trace", *, first: str = "-o"
) -> None:
    """Refuse one file for two things to write."""
    if output is None or other is None:
        return
    if os.path.realpath(output) == os.path.realpath(other):
        raise click.UsageError(f"{first} and {option} both name {output}; give each one of its own")


def say(content: str) -> None:
    """Print to stdout, which may be closed, or a file on a full disk."""
    if sys.stdout is None:
        raise DiskError("cannot write the answer: stdout is closed")
    try:
        click.echo(content)
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        raise failed("the answer", error) from None


def write(path: Path, content: str) -> None:
    """Write a file whole; an error says in one sentence why it cannot be written."""
    write_whole(path, content)


def note(text: str) -> None:
    """Say something that is not the answer: on stderr, or as a warning where Python asks."""
    if (asker := collecting()) is not None:
        asker.notes.append(text)
        return
    tell(printable(text, keep="\n"))


def note_engine() -> None:
    """Say that simgpt simulates slowly, where it was installed without a C compiler and nobody
    chose the engine."""
    from simulator.engine.engines import is_makeshift

    if is_makeshift():
        note(
            "simgpt was installed without a C compiler and simulates several times as slowly; "
            "install one, and then simgpt again"
        )


def wrote(paths: Sequence[Path], text: str) -> None:
    """Say which files were written: in a text on stderr, or by their paths where Python asks."""
    if (asker := collecting()) is not None:
        asker.paths.extend(paths)
    else:
        note(f"wrote {text}")


def machine_of(
    name_or_path: str, changes: Mapping[str, Any] | None = None, *, tells: bool = True
) -> Machine:
    """The machine of that name or file, with values set of it; what the rate of a link or a NIC
    comes to is said where it `tells`."""
    machine = load_machine(name_or_path)
    if not changes:
        return machine
    changed = with_settings(machine, changes)
    for key in changes if tells else ():
        if words := rate_words(changed, key):
            note(f"{key}: {words}")
    return changed


def compact(record: dict[str, Any]) -> str:
    """JSON on one line, for files that programs read."""
    return json.dumps(record, separators=(",", ":")) + "\n"


def check_machine(document: dict[str, Any]) -> Machine:
    """The machine of a document that was just made."""
    return machine_from_dict(document, "calibration")


def strict(value: Any) -> Any:
    """The value as JSON knows it: a loss that went to infinity is null."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
