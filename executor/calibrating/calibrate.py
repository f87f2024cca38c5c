"""Calibrating this machine: measure with one rank and with all, and make its machine file."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from executor.calibrating.conditions import Conditions
from executor.calibrating.host_machine import machine_document
from executor.calibrating.measurement_cache import (
    DamagedError,
    alone,
    code_digest,
    keep,
    kept,
    measurements_folder,
)
from executor.launching.launch import check_ranks, launch, require_torch
from executor.launching.task_specs import Calibrated, Calibration, Measurement, task_line
from topologies.errors import SimgptError
from topologies.files.cache_folder import cache_folder
from topologies.machine import Machine, machine_from_dict
from workload.gpt import GPT
from workload.plan import Plan

Progress = Callable[[str], None]


def calibrate(
    task: Calibration, ranks: int, progress: Progress, *, one_rank: bool
) -> dict[str, Any]:
    """The machine document of this machine with `ranks` devices.

    With `one_rank`, kernels are measured a second time with one rank alone, for predictions of
    fewer ranks than the machine has. Its `profile.provenance` has the `Conditions` under which it
    was measured.
    """
    before = Conditions.now()
    runs = [
        _measure(task, count, progress)
        for count in ((1, ranks) if one_rank and ranks > 1 else (ranks,))
    ]
    measured = f"{before.at:%Y-%m-%d}, torch {runs[-1].torch}, {task.threads} thread(s) a rank"
    document = machine_document(runs[0] if len(runs) > 1 else None, runs[-1], ranks, measured)
    under = replace(before, spread=max(run.spread for run in runs))
    document["profile"]["provenance"] |= under.as_provenance()
    return document


def _measure(task: Calibration, ranks: int, progress: Progress) -> Calibrated:
    def report(message: dict[str, Any]) -> None:
        share = f"{message['done']}/{message['of']}"
        progress(f"calibrating with {ranks} rank(s): {share} {message['measuring']}")

    description = task_line(task)
    found = launch("calibrate", description, ranks=ranks, report=report, timeout_s=task.timeout_s)
    return Calibrated(**found)


def cached(
    task: Calibration,
    ranks: int,
    progress: Progress,
    *,
    announce: Progress = lambda _: None,
    again: bool = False,
) -> Machine:
    """This machine by its quick calibration, made now if it is not there yet, or `again`.

    Of two processes that want it at once, one measures, undisturbed by the other, which waits.
    `announce` hears that something is about to be measured, and why, and how old a calibration is,
    beside which load it was made and whether its repeats agreed.
    """
    require_torch()
    check_ranks(ranks)
    with measurements_folder(announce) as folder:
        path = folder / f"host-{_fingerprint(task, ranks)}.json"
        document, why = (None, "measuring this machine anew") if again else _kept(path, ranks)
        if document is None:
            with alone(path):
                if not again:  # another process may have measured meanwhile
                    document, why = _kept(path, ranks)
                if document is None:
                    announce(why)
                    document = calibrate(task, ranks, progress, one_rank=False)
                    keep(path, document)
                    if folder == cache_folder():
                        announce(f"kept in {path}")
    under = Conditions.of(document)
    if under is not None:
        announce(under.words(datetime.datetime.now(datetime.UTC)))
    return machine_from_dict(document, path.name)


def _kept(path: Path, ranks: int) -> tuple[dict[str, Any] | None, str]:
    """The calibration that is there, or why one has to be measured."""
    try:
        document = kept(path)
        if document is None:
            return (
                None,
                f"no calibration of this machine for {ranks} rank(s) yet; measuring it once",
            )
        if not isinstance(document, dict):
            raise DamagedError("is damaged")
        machine_from_dict(document, path.name)
    except SimgptError as error:
        why = str(error) if isinstance(error, DamagedError) else "is damaged"
        return None, f"the calibration in {path} {why}; measuring this machine anew"
    return document, ""


def _fingerprint(task: Calibration, ranks: int) -> str:
    """Another machine, torch, task, or executor is another calibration."""
    about = [
        task_line(task),
        str(ranks),
        platform.node(),
        platform.machine(),
        str(os.cpu_count()),
        metadata.version("torch"),
        code_digest(),
    ]
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]


def measured_ops(
    gpt: GPT,
    plan: Plan,
    threads: int,
    progress: Progress,
    *,
    timeout_s: float = 300.0,
    announce: Progress = lambda _: None,
) -> dict[str, float]:
    """The seconds of each distinct op of a plan on the device at hand, by signature.

    `announce` hears of kept measurements that are damaged and made anew.
    """
    require_torch()

    def report(message: dict[str, Any]) -> None:
        if "note" in message:
            announce(message["note"])
        else:
            progress(f"measuring ops: {message['done']}/{message['of']} {message['measuring']}")

    with measurements_folder(announce) as folder, alone(folder / "ops.json"):
        task = Measurement(
            gpt=gpt, plan=plan, folder=str(folder), threads=threads, timeout_s=timeout_s
        )
        found = launch("measure", task_line(task), ranks=1, report=report, timeout_s=timeout_s)
    seconds: dict[str, float] = found["seconds"]
    return seconds
