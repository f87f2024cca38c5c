"""The options of a run's checkpoints, and what is refused of them before a rank starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from simgpt import options

if TYPE_CHECKING:
    from executor.checkpoints.saving import Saving
    from executor.launching.launch_env import RankInfo
    from executor.launching.task_specs import Job

Command = TypeVar("Command", bound=Callable[..., Any])
KEEP = 3


def checkpoint_options(function: Command) -> Command:
    """Give a command --save and what goes with it."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


_OPTIONS = (
    click.option(
        "--save",
        type=click.Path(file_okay=False, path_type=Path),
        help="A folder for checkpoints; all ranks must see it.",
    ),
    click.option(
        "--save-every",
        metavar="STEPS|TIME",
        help="Save after so many steps, or each 15min, 2h; default: after the last step alone.",
    ),
    click.option(
        "--keep", type=click.IntRange(min=1), help=f"Newest checkpoints to keep.  [default: {KEEP}]"
    ),
    click.option("--resume", is_flag=True, help="Go on from the newest whole checkpoint."),
    click.option(
        "--resume-anyway",
        is_flag=True,
        help="Likewise, though data or settings are not those of the checkpoint; says which.",
    ),
    click.option(
        "--max-restarts",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Start again so often from the newest checkpoint when a rank is lost.",
    ),
)


def saving_of(how: dict[str, Any], info: RankInfo | None) -> Saving | None:
    """Where, how often and from where a run is saved; None where it is not.

    A job that torchrun starts again goes on from its newest checkpoint, whether it was told to or
    not.
    """
    from executor.checkpoints.saving import Saving, interval

    if info is not None and how["max_restarts"]:
        raise click.UsageError(
            "--max-restarts is for ranks that simgpt starts itself; what started these has its own"
        )
    again = _restarts_of_launcher() if info is not None else 0
    if how["save"] is None:
        for option in ("save_every", "keep", "resume", "resume_anyway", "max_restarts"):
            if how[option]:
                raise click.UsageError(f"--{option.replace('_', '-')} needs --save DIR")
        if again and info is not None and not info.rank:
            options.note(f"restart {again} of this job begins at step 1: --save was not given")
        return None
    every = interval(how["save_every"]) if how["save_every"] else {}
    return Saving(
        folder=str(how["save"]),
        keep=how["keep"] or KEEP,
        resume=how["resume"] or how["resume_anyway"] or again > 0,
        restarted=again > 0,
        anyway=how["resume_anyway"],
        **every,
    )


@contextmanager
def owning(job: Job, info: RankInfo | None) -> Iterator[tuple[Job, tuple[int, ...]]]:
    """Hold the folder that a run is saved into, if it is, for as long as the with statement lasts:
    gives the job, which then knows that it does, and the descriptors of the lock. Of ranks that a
    launcher started the first one does."""
    from executor.checkpoints.ownership import owned

    if job.saving is None or (info is not None and info.rank):
        yield job, ()
        return
    with owned(Path(job.saving.folder), options.note) as (descriptor, is_locked):
        yield replace(job, saving=replace(job.saving, owned=is_locked)), (descriptor,)


def _restarts_of_launcher() -> int:
    """How often torchrun has started this job again; 0 where nothing says so."""
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(count) if count.isdecimal() else 0
