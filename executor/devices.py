"""What accelerators torch can use here, asked in a process of its own: torch is slow to import."""

from __future__ import annotations

import subprocess
import sys

from executor.errors import LaunchError
from executor.launch import require_torch

ASK = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


def accelerators() -> int:
    """How many GPUs torch sees; 0 on a machine without."""
    require_torch()
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASK],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if answer.returncode:
        raise LaunchError(f"torch does not start: {answer.stderr.strip().splitlines()[-1]}")
    return int(answer.stdout)
