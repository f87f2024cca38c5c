"""Anchors of a question: files of a measured step, and logs of the question's own run.

An anchor's file is a point of a study (docs/studies.md) and a table `[measured]`; `simgpt compare
--save` writes it. The step is predicted anew whenever the file is read, so that a file stays right
when predictions change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from simgpt.compared_job import compared
from simgpt.question import MEASUREMENT, PLAIN, Question
from simgpt.question_rows import NAMED, plan_text
from simgpt.step import Sources, Step, plan_table, step_of
from topologies.errors import SimgptError
from topologies.files.named_files import file_of
from topologies.files.printable import MOST_WORD, path_shown, shown
from topologies.files.reading import UserFile
from topologies.files.units import Unit, format_quantity, quantity
from topologies.records import record

if TYPE_CHECKING:
    from simulator.predict import Prediction
    from simulator.uncertainty.anchors import Anchor
    from validation.jobs.comparison import JobComparison

Command = TypeVar("Command", bound=Callable[..., Any])
KEYS = ("step", "steps", "peak", "peak_of", "software", "log")
MOST_S, MOST_BYTES = 86400.0, 2.0**50  # of a step, of a device


class AnchorError(SimgptError):
    """A file of a measured step that cannot be read as such, or says nothing of a question."""


_FILE = UserFile("anchor", AnchorError)


def _option(metavar: str, scaled: str, also: str = "") -> Callable[[Command], Command]:
    return click.option(
        "--anchor",
        "anchors",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar=metavar,
        help=f"A measured step that scales {scaled}: a file of simgpt compare --save{also}. "
        "Several may be given.",
    )


anchor_option = _option("RUN", "the answer", ", or the log of this very run")
anchor_files_option = _option("FILE", "the answers")


@record(slots=False)
class AnchorFile:
    """What an anchor's file says: its question, the measured step, the software that ran, and the
    measured peak of memory and of what it is, if there is one."""

    name: str
    question: Question
    step_s: float
    software: str
    peak: tuple[str, float] | None = None

    def anchor(self) -> Anchor:
        """The anchor, its step predicted."""
        try:
            prediction = step_of(self.question, Sources(tells=False)).predicted()
        except SimgptError as error:
            raise AnchorError(f"{self.name}: {error}") from None
        return _anchor(self.name, prediction, self.step_s, self.software, self.peak)


def read_anchor(path: Path) -> AnchorFile:
    """The anchor that a TOML file describes."""
    name = path_shown(path)
    document = dict(_FILE.parsed(_FILE.text(path), name, toml=True))
    measured = document.pop(MEASUREMENT, None)
    if not isinstance(measured, dict):
        raise AnchorError(
            f"{name} has no table [{MEASUREMENT}]; simgpt compare --save writes anchors"
        )
    for key in measured:
        if key not in KEYS:
            raise AnchorError(f"{name}: unknown key {MEASUREMENT}.{key}; known: {', '.join(KEYS)}")
    for key in document:
        if key not in (*PLAIN, "set"):
            raise AnchorError(f"{name}: unknown key {key!r}; known: {', '.join((*PLAIN, 'set'))}")
    question = _question(document, name, path.parent)
    software = shown(measured.get("software", ""), MOST_WORD) if "software" in measured else ""
    step_s = _measured(measured, name, "step", "s", MOST_S)
    return AnchorFile(name, question, step_s, software, _peak(measured, name))


def _question(document: Mapping[str, Any], name: str, folder: Path) -> Question:
    """The question of an anchor, which names its model and its machine."""
    for key in ("model", "machine"):
        if key not in document:
            raise AnchorError(f"{name} names no {key}")
    return Question.from_toml(document, folder)


def _peak(measured: Mapping[str, Any], name: str) -> tuple[str, float] | None:
    """The measured peak and of what it is; None where there is none."""
    from simulator.uncertainty.anchored_memory import MEASURES

    if "peak" not in measured and "peak_of" not in measured:
        return None
    peak_bytes = _measured(measured, name, "peak", "bytes", MOST_BYTES)
    if measured.get("peak_of") not in MEASURES:
        raise AnchorError(f"{name}: {MEASUREMENT}.peak_of must be one of {', '.join(MEASURES)}")
    return str(measured["peak_of"]), peak_bytes


def _measured(measured: Mapping[str, Any], name: str, key: str, unit: Unit, most: float) -> float:
    """A measured quantity, above 0 and below what none ever is."""
    try:
        found = quantity(measured.get(key), unit)
    except SimgptError as error:
        raise AnchorError(f"{name}: {MEASUREMENT}.{key}: {error}") from None
    if not 0 < found < most:
        below = format_quantity(most, unit)
        raise AnchorError(f"{name}: {MEASUREMENT}.{key} must be above 0 and below {below}")
    return found


def anchors_of(paths: Sequence[Path]) -> tuple[Anchor, ...]:
    """The anchors of some files."""
    for path in paths:
        if path.suffix != ".toml":
            raise AnchorError(
                f"{path_shown(path)} is not an anchor, whose file ends in .toml; simgpt compare "
                "LOG MODEL … --save FILE.toml writes one from a log"
            )
    _check_twice(paths)
    return tuple(read_anchor(path).anchor() for path in paths)


def anchored(step: Step, prediction: Prediction, paths: Sequence[Path]) -> Prediction:
    """A prediction of a step, anchored to files and to logs of that step's run."""
    if not paths:
        return prediction
    _check_twice(paths)
    files = [path for path in paths if path.suffix == ".toml"]
    found = [read_anchor(path).anchor() for path in files]
    found += [_of_log(step, prediction, path) for path in paths if path not in files]
    return prediction.anchored(found)


def _check_twice(paths: Sequence[Path]) -> None:
    for at, path in enumerate(paths):
        if path in paths[:at]:
            raise AnchorError(f"--anchor {path_shown(path)} stands twice")


def _of_log(step: Step, prediction: Prediction, path: Path) -> Anchor:
    """The anchor of a log, which must be of the question's own run as far as it says."""
    found = compared(step, prediction, path)
    name = path_shown(path)
    if found.differences:
        raise AnchorError(
            f"{name} is not of this question: {'; '.join(found.differences)}. simgpt compare "
            f"{name} MODEL … --save FILE.toml writes the anchor of its own"
        )
    job = found.job
    peak = None if job.peak_bytes is None else (job.peak_of, float(job.peak_bytes))
    return _anchor(name, prediction, found.steps.median_s, "", peak)


def _anchor(
    name: str,
    prediction: Prediction,
    measured_s: float,
    software: str,
    peak: tuple[str, float] | None,
) -> Anchor:
    from simulator.uncertainty.anchored_memory import anchor_peak
    from simulator.uncertainty.anchors import Anchor

    own = None if peak is None else anchor_peak(prediction.memory, *peak)
    return Anchor(name, prediction.place, measured_s, prediction.step_s, software, own)


def anchor_text(
    found: JobComparison, question: Question, *, log: Path, file: Path, software: str
) -> str:
    """The anchor's file of a compared job, in TOML; files that it names are named from its own
    folder."""
    from topologies.files.printable import toml_text

    named = {key: _from(file.parent, getattr(question, key)) for key in NAMED}
    words = plan_table(question.plan)
    plan = words if isinstance(words, str) else plan_text(words)
    given = {key: name for key, name in named.items() if name}
    asked = question.changed(**given, plan=plan).as_toml()
    measured: dict[str, Any] = {
        "step": format_quantity(found.steps.median_s, "s", digits=6),
        "steps": found.steps.steps,
    }
    if found.job.peak_bytes is not None:
        measured |= {"peak": format_quantity(found.job.peak_bytes, "bytes", digits=5, binary=True)}
        measured |= {"peak_of": found.job.peak_of}
    measured |= {"software": software} if software else {}
    measured["log"] = path_shown(log)
    return toml_text({**asked, MEASUREMENT: measured})


def _from(folder: Path, name: str) -> str:
    """The name of a model or machine, or the path of its file from a folder."""
    path = file_of(name)
    return name if path is None else os.path.relpath(path, folder) + name.removeprefix(str(path))
