"""Measuring each distinct op of a plan once on the device at hand, and keeping what it took.

What is kept lies in a file per device and software, so that an interrupted measurement goes on
where it was, and another plan measures only what is new to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from executor.calibrating.calibrate_worker import device_name, issue_s, seconds_of
from executor.calibrating.measurement_cache import (
    DamagedError,
    code_digest,
    keep,
    kept_seconds,
)
from executor.calibrating.microbenchmarks import Sample, repeats
from executor.groups import ProcessGroups
from executor.job import connected
from executor.launching.launch_env import RankInfo
from executor.launching.task_specs import AdamW, Measurement, Report
from executor.rank_context import RankContext, scratch_of
from workload.errors import PlanCannotRunError
from workload.lowering import lower
from workload.lowering.distinct import distinct_ops
from workload.op import Op

KEEP_EVERY = 8  # ops between two writes of the file
COPIES = ("to_device", "to_host")


def measure(task: Measurement, info: RankInfo, report: Report) -> dict[str, Any]:
    """The seconds of every distinct op of the task's plan, by signature."""
    every = {
        key: found
        for key, found in distinct_ops(task.gpt, task.plan).items()
        if found[0].kind not in COPIES
    }
    peaks = _peaks(task, {program.stage for _, program in every.values()})
    with connected(info, task.threads, task.timeout_s, task.device) as device:
        path = _file(Path(task.folder), device, task.threads)
        known = _known(path, report)
        slices = {stage: scratch_of(peak, device) for stage, peak in peaks.items()}
        # The same op in other slices is another measurement.
        under = {key: f"{slices[program.stage]} {key}" for key, (_, program) in every.items()}
        new = [key for key in every if under[key] not in known]
        for done, key in enumerate(new, start=1):
            op, program = every[key]
            sample = Sample(op.kind, {}, repeats(op, program), peak_bytes=peaks[program.stage])
            known[under[key]] = _op_s(op, sample, device, task, info)
            report({"done": done, "of": len(new), "measuring": op.kind})
            if done % KEEP_EVERY == 0 or done == len(new):
                keep(path, known)
        seconds = {key: known[under[key]] for key in every}
        return {"seconds": seconds, "device": device_name(device), "measured": len(new)}


def _peaks(task: Measurement, stages: Iterable[int]) -> dict[int, int]:
    """The peak of a step of each of these stages, all its micro-batches included."""
    return {stage: lower(task.gpt, task.plan, stage).peak.total_bytes for stage in stages}


def _op_s(op: Op, sample: Sample, device: torch.device, task: Measurement, info: RankInfo) -> float:
    place = RankContext(grid=task.plan.grid, rank=0, device=device, adamw=AdamW())
    groups = ProcessGroups(info.rank, task.timeout_s)
    try:
        seconds = seconds_of(sample, place, groups, task.sample_s)
        # One number an op: the slower of a GPU and its host counts, as if it stood alone.
        return max(seconds, issue_s(sample, place, groups)) if device.type == "cuda" else seconds
    except torch.OutOfMemoryError:
        raise PlanCannotRunError(
            f"{op.name} of {task.gpt.name} does not fit this device's memory, so that it cannot be "
            "measured here; a smaller mbs may"
        ) from None


def _file(folder: Path, device: torch.device, threads: int) -> Path:
    about = f"{device_name(device)} {torch.__version__} {threads} {code_digest()}"
    return folder / f"ops-{hashlib.sha256(about.encode()).hexdigest()[:16]}.json"


def _known(path: Path, report: Report) -> dict[str, float]:
    try:
        return kept_seconds(path)
    except DamagedError as why:
        report({"note": f"{path} {why}; its ops are measured anew"})
        return {}
