"""Functions that ask about steps: predicted, explained, searched, swept, and over a whole run.

A question (`model`, `machine`, `plan`, `devices`, …) has the same names everywhere; in its place a
`simgpt.Question` can be given, of which keywords change fields. `simgpt COMMAND --help` says what
each option is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from simgpt.api.asking import ask, refusing
from simgpt.api.calendars import PlanRun
from simgpt.api.errors import ArgumentError
from simgpt.api.given import Compute, Plan, Settings, Swept, Text, Texts, Tokens
from simgpt.api.predictions import Prediction, Search, Sweep
from simgpt.api.reasons import Why
from simgpt.question import Question


@overload
def predict(
    model: Text | Question,
    machine: Text | None = ...,
    plan: Plan | None = ...,
    *,
    devices: int | None = ...,
    batch: int | None = ...,
    batch_tokens: int | str | None = ...,
    stack: Text | None = ...,
    model_set: Settings | None = ...,
    set: Settings | None = ...,
    segment: int | None = ...,
    routing: Text | None = ...,
    placement: str | None = ...,
    compute: Compute | None = ...,
    tokens: Tokens | None = ...,
    anchor: Texts | None = ...,
    noise: str | None = ...,
    slow: str | None = ...,
    spread: str | None = ...,
    samples: int | None = ...,
    seed: int | None = ...,
    engine: Literal["compiled", "simpy"] | None = ...,
    trace: Text | None = ...,
    sweep: None = ...,
) -> Prediction: ...


@overload
def predict(
    model: Text | Question,
    machine: Text | None = ...,
    plan: Plan | None = ...,
    *,
    sweep: Swept,
    devices: int | None = ...,
    batch: int | None = ...,
    batch_tokens: int | str | None = ...,
    stack: Text | None = ...,
    model_set: Settings | None = ...,
    set: Settings | None = ...,
    segment: int | None = ...,
    routing: Text | None = ...,
    placement: str | None = ...,
    compute: Compute | None = ...,
    tokens: Tokens | None = ...,
    anchor: Texts | None = ...,
) -> Sweep: ...


@refusing("predict")
def predict(
    model: Text | Question,
    machine: Text | None = None,
    plan: Plan | None = None,
    *,
    devices: int | None = None,
    batch: int | None = None,
    batch_tokens: int | str | None = None,
    stack: Text | None = None,
    model_set: Settings | None = None,
    set: Settings | None = None,
    segment: int | None = None,
    routing: Text | None = None,
    placement: str | None = None,
    compute: Compute | None = None,
    tokens: Tokens | None = None,
    anchor: Texts | None = None,
    noise: str | None = None,
    slow: str | None = None,
    spread: str | None = None,
    samples: int | None = None,
    seed: int | None = None,
    engine: Literal["compiled", "simpy"] | None = None,
    trace: Text | None = None,
    sweep: Swept | None = None,
) -> Prediction | Sweep:
    """Predict one training step of a model on a machine under a plan, as `simgpt predict` does.

    `plan` is `dp=rest` unless it is given, as text, mapping or file. With `sweep`, the values of
    each key to vary, every combination is predicted: `sweep={"z": [16, 64]}`. A plan that does not
    fit into memory is answered in full, with a UserWarning that says what would fit. Bad input
    raises a SimgptError with one sentence.

    >>> import simgpt
    >>> simgpt.predict("gpt-5b", "frontier", "z=16,dp=rest", devices=512, batch=512).fits
    True
    """
    given = locals()
    if sweep is not None and not sweep:
        raise ArgumentError('sweep is empty; give the values of keys, as in sweep={"z": [16, 64]}')
    asked = ask(["predict"], given)
    return Prediction(asked) if sweep is None else Sweep(asked)


@refusing("why")
def why(
    model: Text | Question,
    machine: Text | None = None,
    plan: Plan | None = None,
    *,
    devices: int | None = None,
    batch: int | None = None,
    batch_tokens: int | str | None = None,
    stack: Text | None = None,
    model_set: Settings | None = None,
    set: Settings | None = None,
    segment: int | None = None,
    routing: Text | None = None,
    placement: str | None = None,
    compute: Compute | None = None,
    anchor: Texts | None = None,
    all_numbers: bool | None = None,
    plan_importance: bool | None = None,
    roofline: Text | None = None,
    noise: str | None = None,
    slow: str | None = None,
    spread: str | None = None,
    samples: int | None = None,
    seed: int | None = None,
) -> Why:
    """Say what a step waits for, what it is sensitive to, and what would make it faster, as
    `simgpt why` does."""
    return Why(ask(["why"], locals()))


@refusing("plan-run")
def plan_run(
    model: Text | Question,
    machine: Text | None = None,
    plan: Plan | None = None,
    *,
    tokens: Tokens | None = None,
    devices: int | None = None,
    nodes: Sequence[int] | str | None = None,
    batch: int | None = None,
    batch_tokens: int | str | None = None,
    stack: Text | None = None,
    model_set: Settings | None = None,
    set: Settings | None = None,
    segment: int | None = None,
    routing: Text | None = None,
    placement: str | None = None,
    compute: Compute | None = None,
    start: str | None = None,
    save_every: str | None = None,
    async_save: bool | None = None,
    storage: str | None = None,
    save_time: str | None = None,
    mtbf: str | None = None,
    detection: str | None = None,
    restart: str | None = None,
    spares: int | None = None,
    repair: str | None = None,
    walltime: str | None = None,
    queue_wait: str | None = None,
    draws: int | None = None,
    noise: str | None = None,
    slow: str | None = None,
    spread: str | None = None,
    samples: int | None = None,
    seed: int | None = None,
) -> PlanRun:
    """Say when a whole training run is done, as `simgpt plan-run` does. It needs `tokens`; lives of
    the run are drawn with its failures, saves, restarts and waits."""
    return PlanRun(ask(["plan-run"], locals()))


@refusing("search")
def search(
    model: Text | Question,
    machine: Text | None = None,
    devices: int | None = None,
    *,
    plan: Plan | None = None,
    batch: int | None = None,
    batch_tokens: int | str | None = None,
    stack: Text | None = None,
    model_set: Settings | None = None,
    set: Settings | None = None,
    segment: int | None = None,
    routing: Text | None = None,
    placement: str | None = None,
    top: int | None = None,
    objective: Literal["time", "node-hours", "energy"] | None = None,
    also_devices: Sequence[int] | str | None = None,
    memory_front: bool | None = None,
    exhaustive: bool | None = None,
    rank_by: Literal["time", "axonn"] | None = None,
    time_limit: float | None = None,
    gap: float | str | None = None,
    fits: float | str | None = None,
    workers: int | None = None,
    anchor: Texts | None = None,
) -> Search:
    """Find the plan with the fastest step of all that fit, as `simgpt search` does; `plan` has the
    keys that all plans must have.

    It needs `devices`, and `batch` or `batch_tokens`. Ctrl-C, and `time_limit` in seconds, end it
    with the best plan so far; `optimal`, `gap` and `certificate` of the answer say how good that
    is.
    """
    return Search(ask(["search"], locals()))


@refusing("sweep")
def sweep(
    study: Text,
    *,
    output: Text | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    slurm: bool | None = None,
    partition: str | None = None,
    account: str | None = None,
    time: str | None = None,
    cores: int | None = None,
    interface: str | None = None,
    timeout: float | None = None,
    sort: Literal["throughput", "time", "node-hours", "energy", "memory", "study"] | None = None,
    limit: int | None = None,
    anchor: Texts | None = None,
) -> Sweep:
    """Predict every point of a study file into a folder, as `simgpt sweep` does; rows that the
    folder has already are kept. `predict(..., sweep=...)` varies values without a file."""
    return Sweep(ask(["sweep"], locals()))
