"""The options of a run's checkpoints, and what is refused of them before a rank starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from executor.checkpoints.saving import Saving

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
)


def saving_of(how: dict[str, Any]) -> Saving | None:
    """Where, how often and from where a run is saved; None where it is not."""
    from executor.checkpoints.saving import Saving, interval

    if how["save"] is None:
        for option in ("save_every", "keep", "resume"):
            if how[option]:
                raise click.UsageError(f"--{option.replace('_', '-')} needs --save DIR")
        return None
    every = interval(how["save_every"]) if how["save_every"] else {}
    keep = how["keep"] or KEEP
    return Saving(folder=str(how["save"]), keep=keep, resume=how["resume"], **every)
