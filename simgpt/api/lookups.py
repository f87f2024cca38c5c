"""Functions that look up what is known, compare with measurements, and put answers on a page."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, overload

from simgpt.api.asking import ask, refusing
from simgpt.api.facts import Listing, Machine, Model, Report, Stack, Validation
from simgpt.api.given import Device, Settings, Text, Texts
from simgpt.api.result import Result
from topologies.files.writing import write_whole

ComparisonName = Literal[
    "host",
    "seeds",
    "groups",
    "network",
    "device",
    "published",
    "kernels",
    "memory",
    "goodput",
    "moe",
    "anchored",
]


@refusing("validate")
def validate(
    comparison: ComparisonName,
    *,
    data: Text | None = None,
    table: str | None = None,
    tolerance: float | None = None,
    machine: Texts | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    device: Device | None = None,
    source: str | Sequence[str] | None = None,
    only: str | Sequence[str] | None = None,
    commands: bool | None = None,
    leave_source_out: bool | None = None,
    against: Text | None = None,
    sweeps: bool | None = None,
    rows: bool | None = None,
) -> Validation:
    """Compare predictions with measurements, as `simgpt validate` with that name does; each
    comparison takes some of the options."""
    given = locals()
    return Validation(ask(["validate", given.pop("comparison")], given))


@overload
def machine(name: None = None) -> Listing: ...


@overload
def machine(name: Text, *, figure: Text | None = ..., toml: bool | None = ...) -> Machine: ...


@refusing("machines")
def machine(
    name: Text | None = None, *, figure: Text | None = None, toml: bool | None = None
) -> Machine | Listing:
    """What is known of a machine, with the source of each number, or a list of all machines, as
    `simgpt machines` has it."""
    asked = ask(["machines"], locals())
    return Listing(asked) if name is None else Machine(asked, name)


@overload
def model(name: None = None) -> Listing: ...


@overload
def model(name: Text, *, model_set: Settings | None = ...) -> Model: ...


@refusing("models")
def model(name: Text | None = None, *, model_set: Settings | None = None) -> Model | Listing:
    """A model, by preset, fields or file, or a list of the presets, as `simgpt models` has it."""
    asked = ask(["models"], locals())
    return Listing(asked) if name is None else Model(asked)


@overload
def stack(name: None = None) -> Listing: ...


@overload
def stack(name: Text) -> Stack: ...


@refusing("stacks")
def stack(name: Text | None = None) -> Stack | Listing:
    """What a software stack makes of a plan, with the source of each number, or a list of the
    stacks, as `simgpt stacks` has it."""
    asked = ask(["stacks"], locals())
    return Listing(asked) if name is None else Stack(asked)


@refusing("bench-network")
def bench_network(
    machine: Text,
    *,
    set: Settings | None = None,
    segment: int | None = None,
    collective: str | None = None,
    sizes: str | None = None,
    devices: str | None = None,
    placement: str | None = None,
    algorithm: str | None = None,
    fit: Text | None = None,
) -> Validation:
    """The table that nccl-tests would print on a machine, as `simgpt bench-network` has it; with
    `fit`, measured and predicted times of such a table."""
    return Validation(ask(["bench-network"], locals()))


@refusing("report")
def report(
    *answers: Text | Result,
    output: Text | None = None,
    figures: Text | None = None,
    weak_scaling: bool | None = None,
) -> Report:
    """Put answers on one page, as `simgpt report` does: results of these functions, and files or
    folders that commands wrote.

    It needs `output`, the page's file, or `figures`, a folder for every figure.
    """
    given = locals()
    with tempfile.TemporaryDirectory() as folder:
        files = [_file(each, Path(folder), number) for number, each in enumerate(answers, start=1)]
        return Report(ask(["report"], {**given, "answers": None, "files": files}))


def _file(answer: Text | Result, folder: Path, number: int) -> Text:
    """The file of an answer; a result is written into the folder, where it is named by its kind."""
    if not isinstance(answer, Result):
        return answer
    path = folder / f"{type(answer).__name__.lower()}-{number}.json"
    write_whole(path, json.dumps(answer.to_dict()))
    return path
