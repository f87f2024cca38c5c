"""The options of each function of `import simgpt`, by the names that they have in its command.

`simgpt COMMAND --help` says what each is for. A mapping stands for several `key=value`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

Text = str | PathLike[str]
Settings = Mapping[str, Any] | Sequence[str] | str  # key=value, several times
Plan = Text | Mapping[str, Any]
Anchors = Text | Sequence[Text]
Swept = Mapping[str, Sequence[Any]] | Sequence[str] | str


class Step(TypedDict, total=False):
    """What names a step, beside the model, the machine and the plan."""

    devices: int
    batch: int
    batch_tokens: int | str
    set: Settings
    segment: int
    model_set: Settings
    routing: Text
    placement: str
    stack: Text


class Noise(TypedDict, total=False):
    """Steps drawn with noise."""

    noise: str
    slow: str
    spread: str
    samples: int
    seed: int


class PredictOptions(Step, Noise, total=False):
    """The options of `simgpt predict`."""

    compute: Literal["machine", "profile", "measured"]
    tokens: float | str
    engine: Literal["compiled", "simpy"]
    trace: Text
    anchor: Anchors


class PlanRunOptions(Step, Noise, total=False):
    """The options of `simgpt plan-run`."""

    tokens: float | str
    start: str
    nodes: Sequence[int] | str
    save_every: str
    async_save: bool
    storage: str
    save_time: str
    mtbf: str
    detection: str
    restart: str
    spares: int
    repair: str
    walltime: str
    queue_wait: str
    draws: int


class SweptOptions(Step, total=False):
    """The options of `simgpt predict` that go with `--sweep`."""

    tokens: float | str
    anchor: Anchors


class WhyOptions(Step, Noise, total=False):
    """The options of `simgpt why`."""

    all_numbers: bool
    anchor: Anchors
    plan_importance: bool
    roofline: Text


class SearchOptions(TypedDict, total=False):
    """The options of `simgpt search`."""

    plan: Plan
    batch: int
    batch_tokens: int | str
    top: int
    set: Settings
    segment: int
    model_set: Settings
    routing: Text
    placement: str
    objective: Literal["time", "node-hours", "energy"]
    also_devices: Sequence[int] | str
    memory_front: bool
    stack: str
    exhaustive: bool
    rank_by: Literal["time", "axonn"]
    time_limit: float
    gap: float | str
    fits: float | str
    workers: int
    anchor: Anchors


class SweepOptions(TypedDict, total=False):
    """The options of `simgpt sweep`."""

    output: Text
    workers: int
    scheduler: str
    slurm: bool
    partition: str
    account: str
    time: str
    cores: int
    interface: str
    timeout: float
    sort: Literal["throughput", "time", "node-hours", "energy", "memory", "study"]
    limit: int
    anchor: Anchors


class ValidateOptions(TypedDict, total=False):
    """The options of all comparisons of `simgpt validate`, each of which takes some of them."""

    data: Text
    table: str
    tolerance: float
    machine: Text | Sequence[str]
    threads: int
    timeout: float
    device: Literal["auto", "cpu", "cuda"]
    source: str | Sequence[str]
    only: str | Sequence[str]
    commands: bool
    leave_source_out: bool
    against: Text
    sweeps: bool
    plans: int
    seed: int
    rows: bool


class MachineOptions(TypedDict, total=False):
    """The options of `simgpt machines` with a name."""

    figure: Text
    toml: bool


class ReportOptions(TypedDict, total=False):
    """The options of `simgpt report`."""

    output: Text
    figures: Text
    weak_scaling: bool
