"""The device validation: a fixed matrix of steps on one device, predicted and then run."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from simulator.costs.measured import MeasuredCosts
from simulator.predict import predict
from topologies.machine import Machine
from topologies.records import record
from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.lowering import lower
from workload.plan import Plan

LAYERS, VOCAB, MICRO_BATCHES, STEPS = 2, 32_000, 2, 8


@record(kw_only=True)
class DeviceCase:
    """One step of the matrix: a model's shape and how it is trained."""

    family: str
    hidden: int
    sequence: int
    micro_batch: int
    recompute: str = "none"
    precision: str = "bf16"
    vocab: int = VOCAB

    @property
    def gpt(self) -> GPT:
        """A model of two layers of this shape, as GPT-2 or as Llama has them."""
        llama = self.family == "llama"
        width = 128 if self.hidden >= 2048 else 64
        return GPT.of(
            name=f"{self.family}-{self.hidden}-{self.sequence}",
            layers=LAYERS,
            hidden=self.hidden,
            heads=max(self.hidden // width, 1),
            ffn=(11 * self.hidden // 4 if llama else 4 * self.hidden),
            sequence=self.sequence,
            vocab=self.vocab,
            tied=not llama,
            norm="rmsnorm" if llama else "layernorm",
            activation="swiglu" if llama else "gelu",
            positions="rope" if llama else "learned",
            biases=not llama,
        )

    @property
    def plan(self) -> Plan:
        """One rank, two micro-batches."""
        return Plan.of(
            batch=MICRO_BATCHES * self.micro_batch,
            mbs=self.micro_batch,
            recompute=self.recompute,
            precision=self.precision,
        )


def matrix(*, accelerator: bool) -> list[DeviceCase]:
    """The shapes that a GPU is asked for; a CPU gets a tenth of their widths, in fp32."""
    shapes = [(1024, 1024, 16), (1024, 8192, 1), (2048, 2048, 4), (4096, 2048, 2)]
    shapes += [(4096, 4096, 4), (8192, 2048, 2), (8192, 8192, 1), (12288, 2048, 1)]
    if not accelerator:
        shapes = [(128, 128, 8), (128, 512, 1), (256, 256, 4), (384, 256, 2), (512, 256, 2)]
    cases = []
    for family in ("gpt", "llama"):
        for number, (hidden, sequence, micro_batch) in enumerate(shapes):
            recompute = ("none", "selective", "full")[number % 3]
            half = accelerator and number % 4 != 1
            cases.append(
                DeviceCase(
                    family=family,
                    hidden=hidden,
                    sequence=sequence,
                    micro_batch=micro_batch,
                    recompute=recompute,
                    precision="bf16" if half else "fp32",
                    vocab=VOCAB if accelerator else 512,
                )
            )
    return cases


@record(kw_only=True)
class DeviceRow:
    """One case: its step as measured, as predicted from the calibration's tables and from its own
    ops measured alone, seconds of the compute stream by op kind, and peak memory."""

    case: DeviceCase
    measured_s: float
    profile_s: float
    ops_s: float
    measured_peak_bytes: int
    predicted_peak_bytes: int
    kinds: Mapping[str, tuple[float, float]]
    op_seconds: Mapping[str, float]

    @property
    def profile_error(self) -> float:
        """Relative error of the prediction from tables."""
        return self.profile_s / self.measured_s - 1

    @property
    def ops_error(self) -> float:
        """Relative error of the prediction from measured ops."""
        return self.ops_s / self.measured_s - 1

    @property
    def memory_error(self) -> float:
        """Relative error of the predicted peak."""
        return self.predicted_peak_bytes / self.measured_peak_bytes - 1

    def as_dict(self) -> dict[str, Any]:
        """The row as it stands in JSON."""
        raw = asdict(self)
        raw["kinds"] = {
            kind: {"measured_s": measured, "predicted_s": predicted}
            for kind, (measured, predicted) in self.kinds.items()
        }
        errors = {"profile_error": self.profile_error, "ops_error": self.ops_error}
        return {**raw, **errors, "memory_error": self.memory_error}


def validate_device(
    machine: Machine,
    cases: list[DeviceCase],
    *,
    threads: int,
    timeout_s: float,
    progress: Callable[[str], None],
) -> Iterator[DeviceRow | tuple[DeviceCase, str]]:
    """Predict and run each case; one that does not fit comes with the reason in a row's place."""
    from executor.calibrating.calibrate import measured_ops
    from executor.launching.launch import launch_training
    from executor.launching.task_specs import Job

    for case in cases:
        gpt, plan = case.gpt, case.plan
        profiled = predict(gpt, plan, machine)
        if not profiled.memory.fits:
            yield case, f"needs {profiled.memory.peak_bytes} bytes of memory"
            continue
        progress(f"measuring {gpt.name} with {plan}")
        try:
            seconds = measured_ops(gpt, plan, threads, progress, timeout_s=timeout_s)
        except PlanCannotRunError as error:
            yield case, str(error)
            continue
        job = Job(gpt=gpt, plan=plan, steps=STEPS, threads=threads, timeout_s=timeout_s)
        found = launch_training(job)
        yield DeviceRow(
            case=case,
            measured_s=found["step_s"],
            profile_s=profiled.step_s,
            ops_s=predict(gpt, plan, machine, op_seconds=seconds).step_s,
            measured_peak_bytes=found["peak_bytes"],
            predicted_peak_bytes=profiled.memory.peak_bytes,
            kinds=_by_kind(gpt, plan, machine, seconds, found["ranks"][0]),
            op_seconds=seconds,
        )


def _by_kind(
    gpt: GPT, plan: Plan, machine: Machine, seconds: Mapping[str, float], spans: dict[str, Any]
) -> dict[str, tuple[float, float]]:
    costs = MeasuredCosts(seconds, machine.node.host.bytes_per_s)
    kinds: dict[str, tuple[float, float]] = {}
    program = lower(gpt, plan)
    for op, start, end in zip(program.ops, spans["start_s"], spans["end_s"], strict=True):
        measured, predicted = kinds.get(op.kind, (0.0, 0.0))
        kinds[op.kind] = measured + end - start, predicted + costs.seconds(op)
    return kinds


def repredicted(record: Mapping[str, Any], machine: Machine) -> list[tuple[float, float]]:
    """Measured and newly predicted step of each row of a kept validation, from its ops' times."""
    pairs = []
    for row in record["rows"]:
        case = DeviceCase(**row["case"])
        step = predict(case.gpt, case.plan, machine, op_seconds=row["op_seconds"])
        pairs.append((row["measured_s"], step.step_s))
    return pairs


def provenance(machine: Machine) -> dict[str, str]:
    """Where and when a validation was made."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "device": machine.device.name,
        "software": machine.software.name,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }
