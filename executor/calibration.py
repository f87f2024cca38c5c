"""Calibrating this machine: measure with one rank and with all, and make its machine file."""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from executor import messages, samples
from executor.errors import LaunchError
from executor.host import machine_document
from executor.launch import check_ranks, launch, require_torch
from executor.tasks import Calibration, Measurement
from workload.gpt import GPT
from workload.plan import Plan

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


def cached(
    task: Calibration, ranks: int, progress: Progress, *, announce: Progress = lambda _: None
) -> Path:
    """The file of this machine's quick calibration, made now if it is not there yet.

    Of two processes that want it at once, one measures, undisturbed by the other, which waits.
    `announce` hears that something is about to be measured, and why.
    """
    require_torch()
    check_ranks(ranks)
    path = _cache() / f"host-{_fingerprint(task, ranks)}.json"
    if path.exists():
        return path
    with _alone(path):
        if not path.exists():
            announce(f"no calibration of this machine for {ranks} rank(s) yet; measuring it once")
            document = calibrate(task, ranks, progress, solo=False)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(document), encoding="utf-8")
            partial.replace(path)
            announce(f"kept in {path}")
    return path


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock beside a file of the cache; the system frees it should this process die."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("w")
    except OSError as error:
        raise LaunchError(
            f"cannot keep a calibration in {path.parent}: {error.strerror}; set XDG_CACHE_HOME to "
            "a folder that can be written, or give -m FILE or --no-predict"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "simgpt"


def _fingerprint(task: Calibration, ranks: int) -> str:
    """Another machine, torch, simgpt, task, set of samples or way to time them is another
    calibration."""
    timing = Path(__file__).with_name("calibrate.py")
    sources = [Path(str(module.__file__)) for module in (messages, samples)]
    about = [
        task.to_json(),
        str(ranks),
        platform.node(),
        platform.machine(),
        str(os.cpu_count()),
        metadata.version("torch"),
        metadata.version("simgpt"),
        *(path.read_text(encoding="utf-8") for path in (*sources, timing)),
    ]
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]


def measured_ops(gpt: GPT, plan: Plan, threads: int, progress: Progress) -> dict[str, float]:
    """The seconds of each distinct op of a plan on the device at hand, by signature."""
    require_torch()
    task = Measurement(gpt=gpt, plan=plan, folder=str(_cache()), threads=threads)

    def report(message: dict[str, Any]) -> None:
        progress(f"measuring ops: {message['done']}/{message['of']} {message['measuring']}")

    with _alone(_cache() / "ops.json"):
        found = launch("measure", task.to_json(), ranks=1, report=report, timeout_s=task.timeout_s)
    seconds: dict[str, float] = found["seconds"]
    return seconds
