"""What other commands answered, read from their JSON files and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from validation.report.prediction import Answer, prediction_of
from validation.report.reading import Reader, ReportError, document_of, parsed, text_of

ROWS = ".jsonl"
OF_MACHINE = "machine."


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True)
class Answers:
    """All that was read: predictions, measured steps, points of a sweep without an answer, and
    what searches say of the plans that they did not simulate."""

    predictions: Sequence[Answer] = ()
    pairs: Sequence[Pair] = ()
    failures: Sequence[tuple[str, str]] = ()
    remarks: Sequence[str] = ()

    def __add__(self, other: Answers) -> Answers:
        return Answers(
            [*self.predictions, *other.predictions],
            [*self.pairs, *other.pairs],
            [*self.failures, *other.failures],
            [*self.remarks, *other.remarks],
        )


def read_answers(paths: Sequence[Path]) -> Answers:
    """Everything that the files and folders hold; a folder's files of other kinds are passed by."""
    found = Answers()
    for path in paths:
        if path.is_dir():
            found += _folder(path)
        else:
            found += _file(path)
    if not (found.predictions or found.pairs):
        raise ReportError(f"no answers of simgpt in {', '.join(map(str, paths))}")
    return found


def _folder(path: Path) -> Answers:
    found = Answers()
    for each in sorted(path.iterdir()):
        if each.suffix == ROWS:
            found += _file(each)
        elif each.suffix == ".json":
            document = document_of(each)
            found += _answer(document, each.name) or Answers()
    return found


def _file(path: Path) -> Answers:
    if path.suffix == ROWS:
        return _sweep(path)
    found = _answer(document_of(path), path.name)
    if found is None:
        raise ReportError(
            f"{path} is no answer of simgpt predict, search, why, run or validate with --json, "
            "nor a sweep's results.jsonl"
        )
    return found


def _sweep(path: Path) -> Answers:
    rows = list(_rows(path))
    points = [row["point"] for _, row in rows if isinstance(row.get("point"), dict)]
    varied = [key for key in dict.fromkeys(k for point in points for k in point)
              if len({str(point.get(key)) for point in points}) > 1]  # fmt: skip
    predictions, failures = [], []
    for origin, row in rows:
        prediction, point = row.get("prediction"), row.get("point")
        label = _label(point, varied) if isinstance(point, dict) else str(row.get("id", origin))
        if isinstance(prediction, dict):
            found = prediction_of(_at_point(prediction, point), origin)
            predictions.append(replace(found, label=label if varied else ""))
        else:
            failures.append((label, str(row.get("reason") or row.get("status") or "")))
    return Answers(predictions, (), failures)


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """A row a line; the last one may be cut short where a sweep was interrupted."""
    lines = text_of(path).splitlines()
    for number, line in enumerate(lines, start=1):
        origin = f"{path.name} line {number}"
        try:
            row = parsed(line, origin)
        except ReportError:
            if number == len(lines):
                return
            raise
        if not isinstance(row, dict):
            raise ReportError(f"{origin} is no row of a sweep")
        yield origin, row


def _label(point: Mapping[str, Any], varied: Sequence[str]) -> str:
    """What a point has that others have not, by the short names of its keys."""
    words = [f"{key.removeprefix('plan.').removeprefix(OF_MACHINE)}={point[key]}"
             for key in varied if key in point]  # fmt: skip
    return ", ".join(words)


def _at_point(prediction: dict[str, Any], point: Any) -> dict[str, Any]:
    """A row's prediction with what its point alone says: the machine by its full name, and set."""
    if not isinstance(point, dict):
        return prediction
    settings = {
        key.removeprefix(OF_MACHINE): value
        for key, value in point.items()
        if key.startswith(OF_MACHINE)
    }
    found = {**prediction, "settings": settings}
    if isinstance(point.get("machine"), str):
        found["machine"] = point["machine"]
    if isinstance(point.get("placement"), str):
        found["placement"] = {"policy": point["placement"]}
    return found


def _answer(document: Any, origin: str) -> Answers | None:
    if not isinstance(document, dict):
        return None
    if isinstance(document.get("plans"), list):
        return _search(document, origin)
    if "breakdown_s" in document:
        return Answers([prediction_of(document, origin)])
    if "losses" in document and "step_s" in document:
        return Answers((), [_run(document, origin)])
    rows = document.get("rows")
    if isinstance(rows, list):
        pairs = list(_validation(rows, origin))
        return Answers((), pairs) if pairs else None
    return None


def _search(document: Mapping[str, Any], origin: str) -> Answers:
    """The plans that a search, or AxoNN's ranking, found, each once."""
    found: dict[tuple[str, int], Answer] = {}
    titles = {"plans": "plan", "memory_front": "less memory", "devices_front": "devices"}
    for title, word in titles.items():
        for number, row in enumerate(document.get(title) or (), start=1):
            if not isinstance(row, dict):
                raise ReportError(f"{origin}: {title} has something that is no plan")
            placed = {key: document[key] for key in ("placement", "settings") if key in document}
            machine = document.get("machine", row.get("machine"))
            answer = prediction_of({**row, **placed, "machine": machine}, origin)
            named = replace(answer, label=f"{word} {number}")
            found.setdefault((answer.plan, answer.devices), named)
    said = [document[key] for key in ("certificate", "correlation") if key in document]
    return Answers(list(found.values()), remarks=[str(words) for words in said])


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
