"""Which devices ranks compute on. Torch is asked in a process of its own: it is slow to import."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata

from executor.errors import LaunchError, OtherDeviceError
from executor.launching.launch import require_torch
from executor.launching.sentences import last_words
from topologies.interpreter import child_environment

TIMEOUT_S = 120
_MODEL = re.compile(r"\b[A-Z]+\d{2,}[A-Z]*\b")  # of a GPU
ANY_PROCESSOR = "processor core"
ASK = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


NAME = "import torch; print(torch.cuda.get_device_name())"


def accelerators() -> int:
    """How many GPUs torch sees; 0 on a machine without. A LaunchError if torch does not say."""
    require_torch()
    if metadata.version("torch").endswith("+cpu"):  # a build that knows of none
        return 0
    count = _said_by_torch(ASK)
    if not count.isdecimal():
        raise LaunchError("torch does not say which GPUs there are: exit status 0")
    return int(count)


def processor_name() -> str:
    """What this host's processor calls itself."""
    return platform.processor() or platform.machine()


def check_is_here(name: str, device: str, machine: str) -> None:
    """Refuse a machine whose devices, of that name, are not those here: `cpu`s or `cuda` ones.

    A calibration has the name that a device calls itself, a description one with the same model in
    it (H100, MI250X); the stand-in for any host has processor cores.
    """
    here = _said_by_torch(NAME) if device == "cuda" else processor_name()
    model = _MODEL.search(name)
    if name == here or (device == "cpu" and name == ANY_PROCESSOR):
        return
    if device == "cuda" and model is not None and model[0] in here:
        return
    raise OtherDeviceError(
        f"{machine} has {name}, and what runs here is {here}; leave -m out, or give the file of "
        "`simgpt calibrate` on this machine"
    )


def _said_by_torch(script: str) -> str:
    try:
        answer = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            env={**os.environ, **child_environment()},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"torch does not say within {TIMEOUT_S} s which GPUs there are") from None
    if answer.returncode:
        why = last_words(answer.stderr) or f"exit status {answer.returncode}"
        raise LaunchError(f"torch does not say which GPUs there are: {why}")
    return answer.stdout.strip()


def device_for(wanted: str, ranks: int, announce: Callable[[str], None]) -> str:
    """`cpu` or `cuda`: what `ranks` ranks of this machine compute on when `wanted` was asked for.

    `auto` is CUDA where each rank has a GPU of its own, else the CPU, and `announce` hears of GPUs
    that are left idle. `cuda` without a GPU for each rank is refused: two ranks on one GPU cannot
    form an NCCL communicator.
    """
    if wanted == "cpu":
        return "cpu"
    gpus = accelerators()
    if gpus >= ranks:
        return "cuda"
    if wanted == "cuda":
        raise LaunchError(
            f"--device cuda: {ranks} rank(s) need a GPU each, and torch sees {gpus} here; "
            "take fewer ranks, or --device cpu"
        )
    if gpus:
        announce(f"computing on the CPU: {ranks} ranks need a GPU each, and torch sees {gpus} here")
    return "cpu"
