"""One rank of a job that `launch` started: `python -m executor.worker TASK`, the rest on stdin.

TASK is `train`, `calibrate` or `measure`; its description is one line on stdin, which stays open as
long as the parent lives. Rank 0 answers on stdout with one JSON object per line, the last of them
under the key `result`.
"""

from __future__ import annotations

import json
import os
import sys
from threading import Thread
from typing import Any

from executor.errors import LaunchError
from executor.seat import Seat
from executor.tasks import Calibration, Job, Measurement, Report
from topologies.errors import SimgptError


def main() -> int:
    """Perform the task that stands on the command line; a user's mistake is one line on stderr."""
    seat = Seat.from_environment(os.environ)
    if seat is None:
        raise LaunchError("a worker needs RANK and WORLD_SIZE in its environment")
    task, description = sys.argv[1], sys.stdin.readline()
    Thread(target=_end_with_parent, daemon=True).start()
    say = _answers()
    if task == "calibrate":
        from executor.calibrate import measure

        result = measure(Calibration.from_json(description), seat, say)
    elif task == "measure":
        from executor.measure import measure as measure_ops

        result = measure_ops(Measurement.from_json(description), seat, say)
    else:
        from executor.job import perform

        result = perform(Job.from_json(description), seat, say)
    if seat.rank == 0:
        say({"result": result})
    return 0


def _end_with_parent() -> None:
    """Stop this process when nobody holds the other end of stdin any more."""
    while os.read(0, 1):
        pass
    os._exit(LaunchError.exit_code)


def _answers() -> Report:
    """What puts a message on stdout, which from now on is stderr for everybody else."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    return say


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SimgptError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
