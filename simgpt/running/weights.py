"""`--from-weights` and `--export-weights`: what is checked before a rank starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options
from topologies.errors import OutputError
from topologies.files.printable import path_shown
from topologies.files.writing import failed
from workload.gpt import GPT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from executor.launching.launch_env import RankInfo

    Command = Callable[..., Any]


def weights_options(command: Command) -> Command:
    """Give a command the weights that a run starts from, and those that it leaves."""
    starts = click.option(
        "--from-weights",
        metavar="DIR|FILE",
        help="Start from published weights: a folder with safetensors of Hugging Face, or a file.",
    )
    leaves = click.option(
        "--export-weights",
        metavar="DIR",
        help="Write the last weights as model.safetensors with a config.json for transformers.",
    )
    return starts(leaves(command))


def check_weights(gpt: GPT, starts: str | None, leaves: str | None, info: RankInfo | None) -> None:
    """Refuse weights that are not the model's, and a folder that cannot take them or holds
    something; the folder is made, by the rank that writes into it."""
    if starts is None and leaves is None:
        return
    from executor.published.checkpoint import checkpoint_of, require_safetensors
    from executor.published.families import family_of

    require_safetensors()
    family_of(gpt)
    if starts is not None:
        checkpoint_of(Path(starts), gpt)
    if leaves is not None and (info is None or not info.rank):
        _make(Path(leaves))


@contextmanager
def exporting(leaves: str | None, info: RankInfo | None) -> Iterator[tuple[int, ...]]:
    """Hold the folder that weights are written into, if any are, against other runs that would
    write theirs over them: gives the descriptors of its lock, of which nothing is left."""
    from executor.checkpoints.ownership import LOCK, owned

    if leaves is None or (info is not None and info.rank):
        yield ()
        return
    folder = Path(leaves)
    with owned(folder, options.note) as (descriptor, _):
        _make(folder)  # another run may have written there since it was looked at
        try:
            yield (descriptor,)
        finally:
            (folder / LOCK).unlink(missing_ok=True)


def tell_exported(record: Mapping[str, Any]) -> None:
    """Say on stderr where a run's weights are."""
    if record["exported_weights"] is not None:
        options.note(f"wrote the weights into {path_shown(record['exported_weights'])}")


def _make(folder: Path) -> None:
    from executor.checkpoints.ownership import LOCK

    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not {*os.listdir(folder)} - {LOCK}
    except OSError as error:
        raise failed(folder, error) from None
    if not is_empty:
        raise OutputError(
            f"cannot write weights into {path_shown(folder)}: it is not empty; name a new folder"
        )
    if not os.access(folder, os.W_OK):
        raise OutputError(f"cannot write {path_shown(folder)}: permission denied")
