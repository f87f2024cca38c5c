"""What a rank is told to do; free of torch, so that a parent can write it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from executor.checkpoints.saving import Saving
from executor.launching.device_use import DeviceUse
from executor.training.held_out import HeldOut
from executor.training.learning_rate import Schedule
from topologies.records import record
from workload.gpt import GPT
from workload.passes.matmul_forms import Matmul
from workload.plan import Plan
from workload.plan_text import parse_plan

if TYPE_CHECKING:
    from cattrs import Converter

Task = TypeVar("Task")
Report = Callable[[dict[str, Any]], None]
Tables = dict[str, list[dict[str, float]]]


@record(kw_only=True)
class AdamW:
    """Hyper-parameters of AdamW with decoupled decay, and of clipping by the global norm."""

    lr: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0


@record(kw_only=True)
class Job:
    """A training run as every rank is told of it; it travels as JSON.

    `forms` are the matmul forms that were chosen for the machine, pairs of a matmul and its form.
    `from_weights` is the published checkpoint that it starts from, `export_weights` the folder for
    that which it ends with.
    `text` is what `--data` names, and `tokenizer` the file that makes tokens of a text; where the
    run is saved, `text_sha256` and `tokenizer_sha256` are digests of their contents.
    One that `counts_experts` says how often each was chosen.
    """

    gpt: GPT
    plan: Plan
    steps: int
    seed: int = 0
    forms: tuple[tuple[Matmul, str], ...] = ()
    text: str | None = None
    tokenizer: str | None = None
    threads: int = 1
    timeout_s: float = 300.0
    device: str = "auto"
    adamw: AdamW = field(default_factory=AdamW)
    from_weights: str | None = None
    export_weights: str | None = None
    schedule: Schedule = field(default_factory=Schedule)
    held_out: HeldOut | None = None
    saving: Saving | None = None
    device_use: DeviceUse = field(default_factory=DeviceUse)
    counts_experts: bool = False
    text_sha256: str | None = None
    tokenizer_sha256: str | None = None

    def lr(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        return self.schedule.rate(step, lr=self.adamw.lr, steps=self.steps)


@record(kw_only=True)
class Calibration:
    """What to measure: precisions, how finely, and the seconds that one timing should fill."""

    precisions: tuple[str, ...]
    quick: bool = False
    threads: int = 1
    timeout_s: float = 300.0
    device: str = "auto"
    sample_s: float = 0.02


@record(kw_only=True)
class Calibrated:
    """What a calibration measured, every figure the mean over the ranks; it travels as JSON.

    `kernels` maps `kind@precision` to rows of features and `seconds`, `collectives` likewise.
    `overlap` is the share of a collective's time that compute beside it loses; `device` is what a
    rank's device calls itself, `memory_bytes` what it holds, `reserve_bytes` what of it the driver
    and the communicators took, and `torch` the version. `host` has, by `kind@precision`, the
    seconds in which the host issues an op to a GPU. `spread` is by how much the slowest of a
    kernel's repeats is above the fastest, as a share of it: the median over all kernels, on rank 0.
    """

    kernels: Tables
    collectives: Tables
    overlap: float
    device: str
    memory_bytes: int
    torch: str
    reserve_bytes: int = 0
    host: dict[str, float] = field(default_factory=dict)
    spread: float = 0.0


@record(kw_only=True)
class Measurement:
    """Whose distinct ops to measure on one device, and the folder that keeps what they took."""

    gpt: GPT
    plan: Plan
    folder: str
    threads: int = 1
    timeout_s: float = 300.0
    device: str = "auto"
    sample_s: float = 0.02


def task_line(task: object) -> str:
    """A task as the one line of JSON that ranks are told."""
    return json.dumps(_converter().unstructure(task))


def task_of(kind: type[Task], line: str) -> Task:
    """The task back from its line."""
    return _converter().structure(json.loads(line), kind)


@cache
def _converter() -> Converter:
    from cattrs import Converter

    converter = Converter()
    converter.register_unstructure_hook(GPT, GPT.flat)
    converter.register_unstructure_hook(Plan, Plan.flat)
    converter.register_structure_hook(GPT, lambda flat, _: GPT.of(**flat))
    converter.register_structure_hook(Plan, lambda flat, _: parse_plan(flat))
    return converter
