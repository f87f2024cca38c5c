"""What other commands answered, read from their JSON files and checked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from topologies.files.printable import path_shown
from topologies.records import record
from validation.checksums import CHECKSUM, checksum_of
from validation.report.answer_files import ROWS as ROWS_FILE
from validation.report.answer_files import Reader, ReportError, document_of, lines_of
from validation.report.findings import Finding, Row, search_of, sweep_of
from validation.report.former_answers import answer_now
from validation.report.read_prediction import Answer, prediction_of
from validation.report.whole_run.calendar import Calendar, calendar_of

ROWS, STUDY = ".jsonl", "study.json"
FORMAT = 2  # of a study.json, from which on its rows have checksums


@record
class Pair:
    """A measured step and its prediction, where there is one."""

    origin: str
    name: str
    plan: str
    measured_s: float
    predicted_s: float | None

    @property
    def error(self) -> float | None:
        """Relative error of the prediction."""
        return None if self.predicted_s is None else self.predicted_s / self.measured_s - 1


@record(slots=False)
class Answers:
    """All that was read: predictions, measured steps, points of a sweep without an answer, what
    searches and sweeps found, the commands that were run for it, and calendars of whole runs."""

    predictions: Sequence[Answer] = ()
    pairs: Sequence[Pair] = ()
    failures: Sequence[tuple[str, str]] = ()
    findings: Sequence[Finding] = ()
    commands: Sequence[str] = ()
    calendars: Sequence[Calendar] = ()

    def __add__(self, other: Answers) -> Answers:
        return Answers(
            [*self.predictions, *other.predictions],
            [*self.pairs, *other.pairs],
            [*self.failures, *other.failures],
            [*self.findings, *other.findings],
            [*self.commands, *other.commands],
            [*self.calendars, *other.calendars],
        )


def read_answers(paths: Sequence[Path]) -> Answers:
    """Everything that the files and folders hold; a folder's files of other kinds are passed by."""
    found = Answers()
    for path in paths:
        if os.path.isdir(path):
            found += _folder(path)
        else:
            found += _file(path)
    if not (found.predictions or found.pairs or found.findings or found.calendars):
        raise ReportError(f"no answers of simgpt in {', '.join(map(str, paths))}")
    return found


def answers_in(document: Mapping[str, Any], origin: str) -> Answers:
    """Everything that one answer of a command holds, as it stands in JSON."""
    return _answer(answer_now(document), origin) or Answers()


def _folder(path: Path) -> Answers:
    found = Answers()
    try:
        inside = sorted(path.iterdir())
    except OSError as error:
        raise ReportError(f"cannot read the folder {path_shown(path)}: {error.strerror}") from None
    for each in inside:
        if each.suffix == ROWS:
            found += _file(each)
        elif each.suffix == ".json":
            document = answer_now(document_of(each))
            found += _answer(document, each.name) or Answers()
    return found


def _file(path: Path) -> Answers:
    if path.suffix == ROWS:
        study = _study(path.parent / STUDY)
        return _sweep(list(_rows(path, study)), study)
    found = _answer(answer_now(document_of(path)), path.name)
    if found is None:
        raise ReportError(
            f"{path} is not an answer of simgpt predict, search, sweep, why, plan-run, run or "
            "validate with --json, nor a sweep's results.jsonl"
        )
    return found


def _study(path: Path) -> Mapping[str, Any]:
    """What a sweep's folder says of its study."""
    document = document_of(path) if os.path.isfile(path) else None
    return answer_now(document) if isinstance(document, dict) else {}


def _rows(path: Path, study: Mapping[str, Any]) -> Iterator[tuple[str, Row]]:
    """A row a line; what follows the last line is cut short where a sweep was interrupted."""
    lines, torn = lines_of(path)
    has_checksums = isinstance(found := study.get("format"), int) and found >= FORMAT
    for number, line in enumerate([*lines, torn] if torn else lines, start=1):
        origin = f"{path.name} line {number}"
        try:
            row = ROWS_FILE.parsed(line, origin)
        except ReportError:
            if number > len(lines):
                return
            raise
        if not isinstance(row, dict):
            raise ReportError(f"{origin} is not a row of a sweep")
        _check(row, origin, has_checksums)
        yield origin, answer_now(row)


def _check(row: Row, origin: str, has_checksum: bool) -> None:
    """Refuse a row that is not as it was written; sweeps of old wrote no checksums."""
    if CHECKSUM not in row and not has_checksum:
        return
    if row.get(CHECKSUM) != checksum_of(row):
        why = "its checksum tells" if CHECKSUM in row else "it has no checksum"
        raise ReportError(
            f"{origin} is not as it was written ({why}); the same sweep again, into the same "
            "folder, predicts it anew"
        )


def _sweep(rows: Sequence[tuple[str, Row]], study: Mapping[str, Any]) -> Answers:
    answers, failures, finding = sweep_of(rows, study)
    found = [finding] if answers else []
    return Answers(answers, (), failures, found, _commands(study))


def _commands(document: Mapping[str, Any]) -> list[str]:
    asked = document.get("asked")
    command = asked.get("command") if isinstance(asked, dict) else None
    return [command] if isinstance(command, str) else []


def _answer(document: Any, origin: str) -> Answers | None:
    if not isinstance(document, dict):
        return None
    rows, commands = document.get("rows"), _commands(document)
    if isinstance(document.get("plans"), list):
        answers, finding = search_of(document, origin)
        return Answers(answers, findings=[finding], commands=commands)
    if "calendar" in document:
        return Answers(commands=commands, calendars=[calendar_of(document, origin)])
    if "breakdown_s" in document:
        return Answers([prediction_of(document, origin)], commands=commands)
    if "losses" in document and "step_s" in document:
        return Answers((), [_run(document, origin)], commands=commands)
    if not isinstance(rows, list):
        return None
    points = [row for row in rows if isinstance(row, dict) and isinstance(row.get("point"), dict)]
    if points:
        return _sweep([(f"{origin} row {n}", row) for n, row in enumerate(points)], document)
    pairs = list(_validation(rows, origin))
    return Answers((), pairs, commands=commands) if pairs else None


def _run(document: Mapping[str, Any], origin: str) -> Pair:
    of = Reader(document, origin)
    predicted = document.get("predicted_step_s")
    return Pair(
        origin,
        of.text("model"),
        of.text("plan_string"),
        of.positive("step_s"),
        None if predicted is None else of.positive("predicted_step_s"),
    )


def _validation(rows: Sequence[Any], origin: str) -> Iterator[Pair]:
    """Rows that have a measured and a predicted time, under either of the names they go by."""
    for row in rows:
        if not isinstance(row, dict):
            continue
        of = Reader(row, origin)
        for measured, predicted in (
            ("measured_s", "predicted_s"),
            ("measured_step_s", "predicted_step_s"),
        ):
            if row.get(measured) is not None and row.get(predicted) is not None:
                where = row.get("machine", "")
                devices = row.get("devices")
                size = f"{row.get('model', row.get('id', ''))}"
                name = " ".join(
                    filter(None, [size, f"on {devices} of {where}" if where and devices else ""])
                )
                plan = str(row.get("plan_string") or "")
                yield Pair(origin, name, plan, of.positive(measured), of.positive(predicted))
                break
