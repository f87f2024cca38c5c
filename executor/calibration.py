"""Calibrating this machine: measure with one rank and with all, and make its machine file."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from executor.host import machine_document
from executor.launch import launch, require_torch
from executor.tasks import Calibration

Progress = Callable[[str], None]


def calibrate(task: Calibration, ranks: int, progress: Progress, *, solo: bool) -> dict[str, Any]:
    """The machine document of this machine with `ranks` devices.

    With `solo`, kernels are measured a second time with one rank alone, for predictions of fewer
    ranks than the machine has.
    """
    runs = [
        _measure(task, count, progress)
        for count in ((1, ranks) if solo and ranks > 1 else (ranks,))
    ]
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    measured = f"{when}, torch {runs[-1]['torch']}, {task.threads} thread(s) a rank"
    return machine_document(runs[0] if len(runs) > 1 else None, runs[-1], ranks, measured)


def _measure(task: Calibration, ranks: int, progress: Progress) -> dict[str, Any]:
    def report(message: dict[str, Any]) -> None:
        share = f"{message['done']}/{message['of']}"
        progress(f"calibrating with {ranks} rank(s): {share} {message['measuring']}")

    description = task.to_json()
    return launch("calibrate", description, ranks=ranks, report=report, timeout_s=task.timeout_s)


def cached(task: Calibration, ranks: int, progress: Progress) -> Path:
    """The file of this machine's quick calibration, made now if it is not there yet."""
    require_torch()
    path = _cache() / f"host-{_fingerprint(task, ranks)}.json"
    if not path.exists():
        progress(f"no calibration of this machine for {ranks} rank(s) yet; measuring it once")
        document = calibrate(task, ranks, progress, solo=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(document), encoding="utf-8")
        partial.replace(path)
    return path


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "simgpt"


def _fingerprint(task: Calibration, ranks: int) -> str:
    """Another machine, torch, simgpt or task is another calibration."""
    about = [
        task.to_json(),
        str(ranks),
        platform.node(),
        platform.machine(),
        str(os.cpu_count()),
        metadata.version("torch"),
        metadata.version("simgpt"),
    ]
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]
