"""`simgpt report`: answers of other commands as one page, and as figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simgpt import options
from simgpt.command_lines import is_command
from simgpt.progress import Ticker

if TYPE_CHECKING:
    from validation.report.answers import Answers


@click.command("report")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=options.NewFile(".html"), help="Write the page here.")
@click.option(
    "--figures",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write every figure into this folder, as PNG, SVG and PDF.",
)
@click.option(
    "--weak-scaling",
    "ladder",
    is_flag=True,
    help="Add weak scaling over AxoNN's ladder of models, with the published points.",
)
def command(
    files: tuple[Path, ...], output: Path | None, folder: Path | None, ladder: bool
) -> None:
    """Put answers on one page: the question and its answer, timeline, memory, links, and more.

    \b
    simgpt report why.json validate.json -o report.html
    simgpt report sweeps/ -o report.html --figures figures/
    simgpt report --weak-scaling --figures figures/

    FILES are what `simgpt predict`, `search`, `sweep`, `why`, `plan-run`, `run` and `validate`
    wrote with --json, the results.jsonl of a sweep, or folders of them. The page is one file that
    loads nothing. It is about the step that `simgpt why` explained, or else about what the first
    search or sweep found: its best step, or how far it scales. That step is simulated again to be
    drawn; a machine or model of your own is read again from where it was, if it is still the same.
    """
    from simgpt.asked_again import ASKING
    from validation.report.answers import Answers, read_answers
    from validation.report.write_report import write_report
    from validation.weak_scaling import weak_scaling

    if not (files or ladder):
        raise click.UsageError("give FILES, or --weak-scaling")
    if output is None and folder is None:
        raise click.UsageError("give -o report.html, or --figures and a folder")
    answers = _with_own_commands(read_answers(files)) if files else Answers()
    if folder is not None:
        _make(folder)
    with Ticker() as ticker:
        ladders = weak_scaling(ticker) if ladder else {}
        written = write_report(
            answers, ladders, asking=ASKING, page=output, folder=folder, progress=ticker
        )
    options.wrote(written.paths, _listed(written.paths))
    if written.missing:
        options.note(" ".join(written.missing.split()))


def _with_own_commands(answers: Answers) -> Answers:
    """The answers without commands that are not one of simgpt: readers of a page paste them."""
    own = [each for each in answers.commands if is_command(each)]
    if other := len(answers.commands) - len(own):
        which = "one that is" if other == 1 else f"{other:,} that are"
        options.note(f"of the commands in the files, {which} not simgpt's will not be shown")
    return replace(answers, commands=own)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"cannot make the folder {folder}: {error.strerror}") from None


def _listed(written: Sequence[Path]) -> str:
    first = str(written[0])
    return first if len(written) == 1 else f"{first} and {len(written) - 1} other files"
