"""One rank of a job that `launch` started: `python -m executor.worker TASK`, the rest on stdin.

TASK is `train` or `calibrate`; rank 0 answers on stdout with one JSON object per line, the last of
them under the key `result`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from executor.errors import LaunchError
from executor.tasks import Calibration, Job, Seat
from topologies.errors import SimgptError


def main() -> int:
    """Perform the task that stands on the command line; a user's mistake is one line on stderr."""
    seat = Seat.from_environment(os.environ)
    if seat is None:
        raise LaunchError("a worker needs RANK and WORLD_SIZE in its environment")
    task, description = sys.argv[1], sys.stdin.read()
    if task == "calibrate":
        from executor.calibrate import measure

        result = measure(Calibration.from_json(description), seat, _say)
    else:
        from executor.job import perform

        result = perform(Job.from_json(description), seat, _say)
    if seat.rank == 0:
        _say({"result": result})
    return 0


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SimgptError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
