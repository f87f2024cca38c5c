"""How long a command takes from the shell, and its peak memory: `python benchmarks/startup.py`.

The limits are those that the project sets itself: help in under 0.2 s, and a prediction for 32,768
devices in under 2 s and 500 MB. Medians of five runs after one that warms the file cache: first
with nothing kept from one run to the next (`SIMGPT_CACHE=off`), then with what the run before has
kept.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
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


def once(words: list[str], cache: str) -> tuple[float, float, float]:
    """Wall seconds, seconds of processor time and peak MB of one run of simgpt."""
    started = time.perf_counter()
    command = subprocess.Popen(
        [sys.executable, "-m", "simgpt", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "SIMGPT_CACHE": cache},
    )
    # wait4 gives this child's own peak, where getrusage would give that of all children so far.
    _, _, usage = os.wait4(command.pid, 0)
    cpu_s = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - started, cpu_s, usage.ru_maxrss / 1e3 * 1.024


def main() -> None:
    """Print two lines per command."""
    with tempfile.TemporaryDirectory() as folder:
        for name, words in COMMANDS.items():
            for cache, label in (("off", "nothing kept"), (folder, "rings kept")):
                once(words, cache)
                runs = zip(*(once(words, cache) for _ in range(RUNS)), strict=True)
                wall_s, cpu_s, peak_mb = map(statistics.median, runs)
                print(f"{name:<28}{label:<14}{wall_s:6.2f} s{cpu_s:6.2f} CPU s{peak_mb:8.0f} MB")


if __name__ == "__main__":
    main()
