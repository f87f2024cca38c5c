"""Plans predicted per second and core inside a sweep, on the models and machines that AxoNN ran.

Run with `python -m benchmarks.sweep_throughput [ROWS_PER_MODEL]`. One process predicts 36 plans of
each published run's model on its machine, devices and batch. The bar is 200 plans per second and
core. Points that cannot be split are answered too, but not counted. What is divided by is processor
time, since the machine may be shared.
"""

from __future__ import annotations

import sys
import time
import tomllib
from itertools import islice
from pathlib import Path

from simgpt.studies.evaluate import Row, rows_of
from simgpt.studies.inputs import inputs_of
from simgpt.studies.study import Study, study_of
from topologies.session import in_session

RUNS = Path(__file__).resolve().parent.parent / "validation" / "data" / "axonn.toml"
SWEEP = {
    "x": [1, 2, 4],
    "y": [1, 2],
    "z": [4, 16, 64],
    "recompute": ["full", "none"],
}


def study(run: dict[str, object]) -> Study:
    """Plans of a published run's model on its devices."""
    fixed = {key: run[key] for key in ("model", "machine", "devices", "batch")}
    document = {**fixed, "plan": "data=rest", "sweep": SWEEP}
    return study_of(document, title=str(run["id"]), folder=Path())


def timed(asked: Study, most: int) -> tuple[list[Row], float]:
    """The rows of a study's first points, and the processor time that they took."""
    inputs = inputs_of(asked)
    batch = list(islice(enumerate(asked.points()), most))
    start = time.process_time()
    rows = rows_of(inputs, batch)
    return rows, time.process_time() - start


@in_session
def main() -> None:
    """Print a line per model, and one for all."""
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 10**6
    plans, total_s = 0, 0.0
    for run in tomllib.loads(RUNS.read_text(encoding="utf-8"))["run"]:
        rows, seconds = timed(study(run), most)
        predicted = sum(row["prediction"] is not None for row in rows)
        plans, total_s = plans + predicted, total_s + seconds
        where = f"{run['model']:9} {run['devices']:6} of {run['machine']:10}"
        rate = f"{seconds:6.2f} s: {predicted / seconds:6.1f} plans/s"
        print(f"{where} {predicted:3} of {len(rows):3} plans can be split, {rate}")
    print(f"all {plans} plans in {total_s:.1f} s of one core: {plans / total_s:.1f} plans/s/core")


if __name__ == "__main__":
    main()
