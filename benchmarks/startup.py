"""How long a command takes from the shell, and its peak memory: `python benchmarks/startup.py`.

The limits are those that the project sets itself: help in under 0.2 s, and a prediction for 32,768
devices in under 2 s and 500 MB. Medians of five runs after one that warms the file cache.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

RUNS = 5
LARGE = "x=8,y=2,z=64,data=32,recompute=full"
COMMANDS = {
    "--help": ["--help"],
    "predict tiny-2m": ["predict", "tiny-2m", "-m", "frontier", "--plan", "data=8"],
    "predict gpt-640b on 32,768": [
        *("predict", "gpt-640b", "-m", "frontier", "-n", "32768"),
        *("--plan", LARGE, "--batch", "8192"),
    ],
}


def once(words: list[str]) -> tuple[float, float]:
    """Wall seconds and peak MB of one run of simgpt."""
    started = time.perf_counter()
    command = subprocess.Popen(
        [sys.executable, "-m", "simgpt", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # wait4 gives this child's own peak, where getrusage would give that of all children so far.
    _, _, usage = os.wait4(command.pid, 0)
    return time.perf_counter() - started, usage.ru_maxrss / 1e3 * 1.024


def main() -> None:
    """Print a line per command."""
    for name, words in COMMANDS.items():
        once(words)
        times, peaks = zip(*(once(words) for _ in range(RUNS)), strict=True)
        print(f"{name:<28}{statistics.median(times):6.2f} s{statistics.median(peaks):8.0f} MB")


if __name__ == "__main__":
    main()
