"""Functions about jobs: measured ones, those of other frameworks, those to submit, and those that
run here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from simgpt.api.asking import ask, refusing
from simgpt.api.given import Device, Plan, Settings, Text, Texts
from simgpt.api.job_results import Calibration, Comparison, Export, Import, JobScript, Run
from simgpt.question import Question

Framework = Literal["megatron", "torchtitan", "deepspeed", "megatron-bridge", "nemo", "axonn"]


@refusing("compare")
def compare(
    log: Text,
    model: Text | Question | None = None,
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
    warm_up: int | None = None,
    save: Text | None = None,
    software: str | None = None,
    reference: str | None = None,
    reached: str | None = None,
) -> Comparison:
    """Compare a measured job, from its log or trace, with its prediction, as `simgpt compare` does.
    It needs `machine`; what else is not given is taken from the arguments in the log."""
    return Comparison(ask(["compare"], locals()))


@refusing("import")
def import_job(
    *files: Text,
    framework: Framework | None = None,
    recipe: str | None = None,
    machine: Text | None = None,
    devices: int | None = None,
    model: Text | None = None,
    model_set: Settings | None = None,
    stack: Text | None = None,
    batch: int | None = None,
    batch_tokens: int | str | None = None,
    define: Settings | None = None,
    predict: bool | None = None,
    verbose: bool | None = None,
) -> Import:
    """Read a job of another framework from its files, as `simgpt import` does; the answer's
    `question` can be given to `predict` and the others."""
    return Import(ask(["import"], locals()))


@refusing("export")
def export(
    model: Text | Question,
    plan: Plan | None = None,
    *,
    to: Literal["megatron", "megatron-bridge", "torchtitan", "deepspeed", "axonn"],
    devices: int | None = None,
    batch: int | None = None,
    batch_tokens: int | str | None = None,
    stack: Text | None = None,
    model_set: Settings | None = None,
) -> Export:
    """Another framework's settings for a plan, as `simgpt export` prints them: `str()` of the
    answer is their file, `settings` has them by name."""
    return Export(ask(["export"], locals()))


@refusing("sbatch")
def sbatch(
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
    steps: int | None = None,
    time: str | None = None,
    account: str | None = None,
    partition: str | None = None,
    site: Literal["frontier", "perlmutter", "alps", "lumi", "generic"] | None = None,
    setup: Texts | None = None,
    launch: Literal["megatron", "torchtitan", "deepspeed"] | None = None,
    script: str | None = None,
) -> JobScript:
    """A job script for Slurm that runs a plan, as `simgpt sbatch` writes it: `str()` of the answer
    is the script."""
    return JobScript(ask(["sbatch"], locals()))


@refusing("run")
def run(
    model: Text | Question,
    plan: Plan | None = None,
    *,
    batch: int | None = None,
    machine: Text | None = None,
    model_set: Settings | None = None,
    ranks: int | None = None,
    steps: int | None = None,
    data: Text | None = None,
    tokenizer: Text | None = None,
    lr: float | None = None,
    lr_schedule: Literal["constant", "cosine", "wsd", "linear"] | None = None,
    warmup_steps: int | None = None,
    decay_steps: int | None = None,
    min_lr: float | None = None,
    weight_decay: float | None = None,
    beta1: float | None = None,
    beta2: float | None = None,
    eps: float | None = None,
    clip: float | None = None,
    eval_data: Text | None = None,
    eval_every: int | None = None,
    eval_batches: int | None = None,
    seed: int | None = None,
    from_weights: Text | None = None,
    export_weights: Text | None = None,
    goldfish_k: int | None = None,
    goldfish_h: int | None = None,
    device: Device | None = None,
    cuda_graphs: bool | None = None,
    bind: Literal["none", "numa"] | None = None,
    attention_backend: Literal["auto", "flash", "cudnn", "math"] | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    recalibrate: bool | None = None,
    no_predict: bool | None = None,
    trace: Text | None = None,
    routing_out: Text | None = None,
    log_file: Text | None = None,
    tensorboard: Text | None = None,
    dry: bool | None = None,
    rank: int | None = None,
    save: Text | None = None,
    save_every: str | int | None = None,
    keep: int | None = None,
    resume: bool | None = None,
    resume_anyway: bool | None = None,
    max_restarts: int | None = None,
) -> Run:
    """Train for real with torch.distributed on this machine, as `simgpt run` does: a line per step
    with predicted beside measured, and all of it in the answer."""
    return Run(ask(["run"], locals()))


@refusing("calibrate")
def calibrate(
    output: Text,
    *,
    ranks: int | None = None,
    precision: str | Sequence[str] | None = None,
    device: Device | None = None,
    threads: int | None = None,
    quick: bool | None = None,
    disturbed: bool | None = None,
    timeout: float | None = None,
) -> Calibration:
    """Measure this machine into a file for `machine=`, as `simgpt calibrate` does."""
    return Calibration(ask(["calibrate"], locals()))
