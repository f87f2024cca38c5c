"""The functions of `import simgpt`, one for each command that answers a question."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Literal, Unpack, overload

from simgpt.api import options as given
from simgpt.api.asking import ask
from simgpt.api.calendars import PlanRun
from simgpt.api.facts import Listing, Machine, Model, Report, Validation
from simgpt.api.predictions import Prediction, Search, Sweep
from simgpt.api.reasons import Why
from simgpt.api.result import Result
from topologies.files.writing import write_whole

Comparison = Literal[
    "host",
    "seeds",
    "groups",
    "network",
    "device",
    "published",
    "kernels",
    "engine",
    "memory",
    "goodput",
    "moe",
    "anchored",
]


@overload
def predict(
    model: given.Text,
    machine: given.Text,
    plan: given.Plan = ...,
    **options: Unpack[given.PredictOptions],
) -> Prediction: ...


@overload
def predict(
    model: given.Text,
    machine: given.Text,
    plan: given.Plan = ...,
    *,
    sweep: given.Swept,
    **options: Unpack[given.SweptOptions],
) -> Sweep: ...


def predict(
    model: given.Text,
    machine: given.Text,
    plan: given.Plan = "dp=rest",
    *,
    sweep: given.Swept | None = None,
    **options: object,
) -> Prediction | Sweep:
    """Predict one training step of a model on a machine under a plan, as `simgpt predict` does.

    With `sweep`, the values of each key to vary, every combination is predicted:
    `sweep={"z": [16, 64]}`. A plan that does not fit into memory is answered in full, with a
    UserWarning that says what would fit. Bad input raises a SimgptError with one sentence.

    >>> import simgpt
    >>> simgpt.predict("gpt-5b", "frontier", "z=16,dp=rest", devices=512, batch=512).fits
    True
    """
    asked = ask(["predict"], [model], {"machine": machine, "plan": plan, "sweep": sweep, **options})
    return Prediction(asked) if sweep is None else Sweep(asked)


def why(
    model: given.Text,
    machine: given.Text,
    plan: given.Plan = "dp=rest",
    **options: Unpack[given.WhyOptions],
) -> Why:
    """Say what a step waits for, what it is sensitive to, and what would make it faster, as
    `simgpt why` does."""
    return Why(ask(["why"], [model], {"machine": machine, "plan": plan, **options}))


def plan_run(
    model: given.Text,
    machine: given.Text,
    plan: given.Plan = "dp=rest",
    **options: Unpack[given.PlanRunOptions],
) -> PlanRun:
    """Say when a whole training run is done, as `simgpt plan-run` does. It needs `tokens`; lives of
    the run are drawn with its failures, saves, restarts and waits."""
    return PlanRun(ask(["plan-run"], [model], {"machine": machine, "plan": plan, **options}))


def search(
    model: given.Text,
    machine: given.Text,
    devices: int,
    **options: Unpack[given.SearchOptions],
) -> Search:
    """Find the plan with the fastest step of all that fit, as `simgpt search` does.

    It needs `batch` or `batch_tokens`. Ctrl-C, and `time_limit` in seconds, end it with the best
    plan so far; `optimal`, `gap` and `certificate` of the answer say how good that is.
    """
    asked = {"machine": machine, "devices": devices, **options}
    return Search(ask(["search"], [model], asked))


def sweep(study: given.Text, **options: Unpack[given.SweepOptions]) -> Sweep:
    """Predict every point of a study file into a folder, as `simgpt sweep` does; rows that the
    folder has already are kept. `predict(..., sweep=...)` varies values without a file."""
    return Sweep(ask(["sweep"], [study], options))


def validate(comparison: Comparison, **options: Unpack[given.ValidateOptions]) -> Validation:
    """Compare predictions with measurements, as `simgpt validate` with that name does."""
    return Validation(ask(["validate", comparison], [], options))


@overload
def machine(name: None = None) -> Listing: ...


@overload
def machine(name: given.Text, **options: Unpack[given.MachineOptions]) -> Machine: ...


def machine(name: given.Text | None = None, **options: object) -> Machine | Listing:
    """What is known of a machine, with the source of each number, or a list of all machines, as
    `simgpt machines` has it."""
    if name is None:
        return Listing(ask(["machines"], [], options))
    return Machine(ask(["machines"], [name], options))


@overload
def model(name: None = None) -> Listing: ...


@overload
def model(name: given.Text, *, model_set: given.Settings = ...) -> Model: ...


def model(
    name: given.Text | None = None, *, model_set: given.Settings | None = None
) -> Model | Listing:
    """A model, by preset, fields or file, or a list of the presets, as `simgpt models` has it."""
    asked = {"model_set": model_set}
    if name is None:
        return Listing(ask(["models"], [], asked))
    return Model(ask(["models"], [name], asked))


def report(*answers: given.Text | Result, **options: Unpack[given.ReportOptions]) -> Report:
    """Put answers on one page, as `simgpt report` does: results of these functions, and files or
    folders that commands wrote.

    It needs `output`, the page's file, or `figures`, a folder for every figure.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [_file(each, Path(folder), number) for number, each in enumerate(answers, start=1)]
        return Report(ask(["report"], files, options))


def _file(answer: given.Text | Result, folder: Path, number: int) -> given.Text:
    """The file of an answer; a result is written into the folder, where it is named by its kind."""
    if not isinstance(answer, Result):
        return answer
    path = folder / f"{type(answer).__name__.lower()}-{number}.json"
    write_whole(path, json.dumps(answer.to_dict()))
    return path
