"""A run whose ranks a launcher started, torchrun or srun: this process is one of them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from simgpt import options
from topologies.errors import SimgptError
from topologies.exit_status import ExitStatus
from workload.errors import PlanCannotRunError, PlanError

if TYPE_CHECKING:
    from executor.launching.launch_env import RankInfo
    from executor.launching.task_specs import Job

FIRST_S = 3.0  # for rank 0 to say what is wrong: a launcher ends all ranks when one has ended


def ranks_of(wanted: int | None, info: RankInfo | None) -> int | None:
    """How many ranks there are to be: those of the launcher, or those wanted."""
    if info is None:
        return wanted
    if wanted is not None and wanted != info.ranks:
        raise click.UsageError(
            f"--ranks {wanted}, but this process is one of {info.ranks} that a launcher started; "
            "leave --ranks out"
        )
    return info.ranks


@contextmanager
def said_by_rank_0(info: RankInfo | None) -> Iterator[None]:
    """What is wrong with a plan or an option is wrong on every rank, and is said by rank 0 alone;
    what may be wrong on one node is said with its rank, by others than rank 0 where no launcher
    ends them for rank 0's sake."""
    try:
        yield
    except (PlanError, PlanCannotRunError, click.UsageError) as error:
        if info is None or not info.rank:
            raise
        _await_rank_0(error.exit_code)
        raise SystemExit(error.exit_code) from None
    except SimgptError as error:
        if info is None or not info.rank:
            raise
        _await_rank_0(error.exit_code)
        error.args = (f"rank {info.rank}: {error}",)
        raise


def _await_rank_0(status: int) -> None:
    """Leave rank 0 the time to speak; a launcher that ends this rank meanwhile ends it silently."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(status))
    time.sleep(FIRST_S)


def join(
    job: Job,
    info: RankInfo,
    report: Callable[[dict[str, Any]], None],
    lost: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Be the rank that a launcher started this process as; `lost` is called where the run ends
    without a result."""
    # Torch's own account of a lost connection is a page; ours is a sentence.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    from executor.launching.rank_processes import CUDA_QUEUES

    for name, value in CUDA_QUEUES.items():
        os.environ.setdefault(name, value)
    from executor.job import perform
    from executor.launching.sentences import sentence_of
    from executor.launching.stopping import ENDS

    try:
        return perform(job, info, report, ends_on=ENDS)
    except SimgptError as error:
        options.note(f"simgpt: {error}")
        status = error.exit_code
    except BrokenPipeError:  # nobody reads on: `| head`
        status = ExitStatus.BUG
    except Exception as error:
        options.note(f"simgpt: rank {info.rank} stopped: {sentence_of(error)}")
        status = ExitStatus.BUG
    with suppress(SimgptError, BrokenPipeError):
        lost()
    # At once: torch's groups, if they were taken down, may wait for ranks that are gone.
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
