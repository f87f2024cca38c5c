"""One rank of a job that `launch` started: `python -m executor.worker TASK RANK RANKS FOLDER`.

TASK is `train`, `calibrate`, `measure` or `memorise`; its description is one line on stdin, which
stays open as long as the parent lives. FOLDER is private to the ranks and their parent. A rank
answers on stdout with one JSON object per line: each shows that it gets on, the last one of rank 0
has the key `result`, and that of a rank that fails the keys `failed` (why), `status` and `lost`
(whether it is a consequence of another rank's end).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn

from executor.errors import LaunchError, PeersLostError
from executor.launching.launch_env import RankInfo
from executor.launching.sentences import sentence_of
from executor.launching.task_specs import Calibration, Job, Measurement, Report, task_of
from topologies.errors import SimgptError
from topologies.exit_status import ExitStatus


def main() -> int:
    """Perform the task that stands on the command line."""
    task, rank, ranks, folder = sys.argv[1:]
    description = sys.stdin.readline()
    Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    say = _answers()
    try:
        result = _perform(
            task, description, RankInfo.local(int(rank), int(ranks), Path(folder)), say
        )
    except BrokenPipeError:
        _leave(folder)
    except Exception as error:
        say(_failure(error))
        # At once: the groups' own end may wait for ranks that wait for this one.
        os._exit(_status(error))
    if int(rank) == 0:
        say({"result": result})
    return 0


def _perform(task: str, description: str, info: RankInfo, say: Report) -> dict[str, Any]:
    if task == "calibrate":
        from executor.calibrating.calibrate_worker import measure

        return measure(task_of(Calibration, description), info, say)
    if task == "measure":
        from executor.calibrating.measure_ops import measure as measure_ops

        return measure_ops(task_of(Measurement, description), info, say)
    if task == "memorise":
        from executor.memorising.measure import measure as measure_memorisation
        from executor.memorising.spec import Memorisation

        return measure_memorisation(task_of(Memorisation, description), info, say)
    from executor.job import perform

    return perform(task_of(Job, description), info, say)


def _failure(error: Exception) -> dict[str, Any]:
    ours = isinstance(error, SimgptError)
    return {
        "failed": str(error) if ours else sentence_of(error),
        "status": _status(error),
        "lost": isinstance(error, PeersLostError),
    }


def _status(error: Exception) -> ExitStatus:
    return error.exit_code if isinstance(error, SimgptError) else ExitStatus.BUG


def _end_with_parent(folder: str) -> None:
    """Stop this process when nobody holds the other end of stdin any more."""
    while os.read(0, 1):
        pass
    _leave(folder)


def _leave(folder: str) -> NoReturn:
    """End without the parent: what it would have tidied up is left to its ranks."""
    shutil.rmtree(folder, ignore_errors=True)
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
    sys.exit(main())
