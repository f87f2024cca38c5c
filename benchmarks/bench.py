"""Times of predictions, sweeps and searches as ratios to those in baseline.json: `make bench`.

Each benchmark is run alone and the least of its times kept. A reference computation that has
nothing of simgpt in it is timed as well; ratios are of times in units of it, so that a machine that
is slower as a whole shows ratios near 1. `python -m benchmarks.bench --write` writes the baseline
anew.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sweep_throughput import study, timed
from simulator.predict import predict
from simulator.search import SearchProblem, search
from topologies.machine_files import load_machine
from topologies.session import Session
from workload.gpt import find_model
from workload.plan_text import parse_plan

BASELINE = Path(__file__).parent / "baseline.json"
RUNS = 3
STEPS = {
    "gpt-640b on 32,768": ("gpt-640b", "frontier", 32768, 8192, "x=8,y=2,z=64,data=32"),
    "ornl-1t on 3,072": (
        "ornl-1t",
        "frontier",
        3072,
        9600,
        "x=8,pipe=64,data=6,micro_batch=1,zero=1",
    ),
    "megatron-1t on 512": ("megatron-1t", "dgx-a100", 512, 512, "x=8,pipe=64,micro_batch=1"),
}
RUN = {"id": "bench", "model": "gpt-80b", "machine": "frontier", "devices": 8192, "batch": 8192}


def reference_s() -> float:
    """Seconds of a fixed computation in Python and numpy."""
    started = time.perf_counter()
    table = {number: str(number) for number in range(400_000)}
    total = sum(len(table[number]) for number in range(0, 400_000, 3))
    array = np.arange(2_000_000, dtype=np.int64)
    for _ in range(10):
        array = np.maximum(array, array[::-1]) + total
    return time.perf_counter() - started


def cold(name: str) -> float:
    """A prediction as a command, from start to end."""
    model, machine, devices, batch, plan = STEPS[name]
    words = ["predict", model, "-m", machine, "-n", str(devices), "--batch", str(batch)]
    command = [sys.executable, "-m", "simgpt", *words, "--plan", f"{plan},recompute=full"]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)
    return time.perf_counter() - started


def warm(name: str) -> float:
    """The same prediction in one session, after two others like it."""
    model, machine, devices, batch, text = STEPS[name]
    gpt, built = find_model(model), load_machine(machine)
    plan = parse_plan(f"{text},recompute=full", devices=devices, batch=batch)
    with Session():
        predict(gpt, plan, built)
        predict(gpt, plan, built)
        started = time.perf_counter()
        predict(gpt, plan, built)
        return time.perf_counter() - started


def sweep_s() -> float:
    """Seconds of 18 points of a sweep."""
    with Session():
        return timed(study(dict(RUN)), 18)[1]


def search_s() -> float:
    """Seconds of a whole search in one process."""
    problem = SearchProblem(find_model("gpt-20b"), 256, 256)
    started = time.perf_counter()
    for _ in search(problem, load_machine("perlmutter")):
        pass
    return time.perf_counter() - started


BENCHMARKS: dict[str, Callable[[], float]] = {
    **{f"predict {name}, cold": (lambda name=name: cold(name)) for name in STEPS},
    **{f"predict {name}, warm": (lambda name=name: warm(name)) for name in STEPS},
    "sweep, 18 points of gpt-80b": sweep_s,
    "search gpt-20b on 256": search_s,
}


def measured() -> dict[str, Any]:
    """Seconds of every benchmark, and of the reference beside it, with nothing kept from before."""
    os.environ["SIMGPT_CACHE"] = "off"
    times = {}
    for name, run in BENCHMARKS.items():
        pairs = [(run(), reference_s()) for _ in range(RUNS)]
        times[name] = {"seconds": min(a for a, _ in pairs), "reference_s": min(b for _, b in pairs)}
    here = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    return {"machine": here, "python": platform.python_version(), "times": times}


def main() -> None:
    """Print each time beside the baseline's, or write the baseline."""
    found = measured()
    if "--write" in sys.argv[1:]:
        BASELINE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    before = json.loads(BASELINE.read_text(encoding="utf-8"))
    print(f"baseline: {before['machine']}, Python {before['python']}")
    for name, own in found["times"].items():
        if name not in before["times"]:
            print(f"{name:36}{own['seconds']:8.3f} s  not in the baseline")
            continue
        base = before["times"][name]
        ratio = own["seconds"] / own["reference_s"] / (base["seconds"] / base["reference_s"])
        print(
            f"{name:36}{own['seconds']:8.3f} s{base['seconds']:10.3f} s before  ratio {ratio:5.2f}"
        )


if __name__ == "__main__":
    main()
