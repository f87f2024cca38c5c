"""Fits how fast GB200 and GB300 are to every other published dense step; prints the factors.

    python -m tools.fit_blackwell_steps

The data are validation/data/blackwell_steps.csv: pretraining of Llama 3 and Nemotron-4 340B that
NVIDIA published in Megatron-Bridge's performance summary and in DGX Cloud's recipes: the rows whose
plans recipes give whole (scripts/performance/configs/llama of v0.2.0 to v0.5.0), without
Megatron-FSDP, layers offloaded to the host, context parallelism or 4 bits. No model has experts, so
none of them is among the rows of `simgpt validate moe`.

One factor multiplies what matmuls reach on a device; attention, which is measured (`python -m
tools.fit_cudnn_attention`), kernels that move bytes, and collectives keep their time. Of steps
in nvfp4 another one multiplies 4-bit matmuls alone, so it is meant for what the constants are once
the first has been taken. Either is the median of the models' mean factors; the rows left out judge
it. A step is A + B / factor, of which two predictions tell A and B.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from topologies.files.reading import shipped_text
from topologies.machine import Machine
from topologies.session import in_session
from validation.moe.rows import moe_runs_of
from validation.published.predicting import Failure, Task, predicted, prepared
from validation.published.runs import PublishedRun

SHIPPED = "blackwell_steps.csv"
NVFP4, OTHERS = "nvfp4", "bf16 and fp8"
FASTER = 1.25  # the factor of the second prediction


@dataclass(frozen=True, slots=True)
class Step:
    """A measured step, and the seconds of its prediction that stay and that a factor divides."""

    gpu: str
    kind: str
    model: str
    measured_s: float
    kept_s: float
    divided_s: float

    def error(self, factor: float) -> float:
        """The predicted step with a factor over the measured one, less one."""
        return (self.kept_s + self.divided_s / factor) / self.measured_s - 1

    @property
    def factor(self) -> float:
        """The one with which the prediction is the measurement."""
        return self.divided_s / (self.measured_s - self.kept_s)


def step_of(run: PublishedRun) -> Step:
    """Predict a row twice."""
    ready = prepared(run)
    assert not isinstance(ready, Failure), ready
    case, machine = ready
    kind = NVFP4 if case.job.plan.training.recipe == NVFP4 else OTHERS
    faster = (narrow_times if kind == NVFP4 else times)(machine, FASTER)
    plain_s, faster_s = (
        predicted(Task(case.job, made)).step_s * case.scale for made in (machine, faster)
    )
    divided_s = (plain_s - faster_s) / (1 - 1 / FASTER)
    measured_s = run.real("measured_step_s")
    assert measured_s is not None
    names = run.text("gpu"), kind, run.text("model")
    return Step(*names, measured_s, plain_s - divided_s, divided_s)


def times(machine: Machine, factor: float) -> Machine:
    """The machine with matmuls faster by a factor."""
    own = machine.device.matmul
    device = replace(machine.device, matmul=replace(own, e_max=own.e_max * factor))
    return replace(machine, device=device)


def narrow_times(machine: Machine, factor: float) -> Machine:
    """The machine with 4-bit matmuls alone faster by a factor."""
    own = machine.device.matmul
    share = (own.nvfp4 or own.fp8) * factor
    device = replace(machine.device, matmul=replace(own, nvfp4=share))
    return replace(machine, device=device)


def factor_of(steps: Sequence[Step]) -> float:
    """The median of the models' mean factors."""
    models = sorted({step.model for step in steps})
    factors = ([step.factor for step in steps if step.model == model] for model in models)
    return statistics.median(map(statistics.fmean, factors))


def mean_error(steps: Sequence[Step], factor: float) -> float:
    """The mean absolute error with a factor."""
    return statistics.fmean(abs(step.error(factor)) for step in steps)


@click.command()
@in_session
def main() -> None:
    """Print the factor of each device, and the errors of the rows that it was not fitted to."""
    lines = shipped_text("validation", f"data/{SHIPPED}").splitlines()
    steps = [step_of(run) for run in moe_runs_of(lines, SHIPPED)]
    for gpu, kind in sorted({(step.gpu, step.kind) for step in steps}):
        own = [step for step in steps if (step.gpu, step.kind) == (gpu, kind)]
        fitted, left = own[::2], own[1::2]
        factor = factor_of(fitted)
        print(
            f"{gpu}, {kind}: factor {factor:.3f} from {len(fitted)} steps; the {len(left)} others "
            f"{mean_error(left, factor):.3f} off, {mean_error(left, 1.0):.3f} without"
        )


if __name__ == "__main__":
    main()
