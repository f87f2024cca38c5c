"""Searches and sweeps: many answers to one question, which of them is best, and by what."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from topologies.files.named_files import located
from topologies.records import record
from validation.report.answer_files import Reader, ReportError
from validation.report.provenance import question_in
from validation.report.read_prediction import Answer, names_of, prediction_of
from validation.report.words import several

FRONTS = {"plans": "plan", "memory_front": "less memory", "devices_front": "devices"}
FRONTS |= {"families": "family"}
RUNG = ("model", "devices", "batch", "plan")
SHARED = ("asked", "placement", "settings", "fields")  # by all plans of a search
GIVEN = ("model", "machine", "stack", "routing", "compute")  # of a point, by name or file
HEADS = ("plan.", "machine.", "model.")
# What makes the best of several answers, in words, and how to find it.
MEASURES: Mapping[str, str] = {
    "throughput": "most model FLOP/s per device",
    "time": "shortest step",
    "node-hours": "fewest node-hours a step",
    "energy": "least energy a step",
    "memory": "least peak memory per device",
}
Row = Mapping[str, Any]


@record(slots=False)
class Ladder:
    """The rungs of a scaling study that can run, by devices. `kind` is weak, strong, or empty where
    it is of no such study, and `varied` has the values that tell it from the study's others."""

    varied: Mapping[str, Any]
    kind: str
    rungs: Sequence[Answer]
    study: str = ""

    @property
    def name(self) -> str:
        """What tells it from the study's others, in words."""
        return label(self.varied, list(self.varied))


@record(slots=False)
class Finding:
    """What a search or a sweep found. `best` is None if nothing fits, and `measure` one of
    MEASURES.

    A search has its `proof`: its certificate, and by what share the best may miss the optimum (None
    while that is unknown). A study has its `title` and, if it is one of scaling, its `ladders`.
    """

    measure: str
    best: Answer | None
    answers: Sequence[Answer]
    title: str = ""
    proof: tuple[str, float | None] | None = None
    asked: str = ""
    ladders: Sequence[Ladder] = ()


def value_by(measure: str, answer: Answer) -> float:
    """What the best answer has least of."""
    of: dict[str, Callable[[], float | None]] = {
        "throughput": lambda: -answer.flops_per_s / answer.devices,
        "time": lambda: answer.step_s,
        "node-hours": lambda: answer.cost.get("node_s_per_step"),
        "energy": lambda: answer.cost.get("energy_j_per_step"),
        "memory": lambda: answer.peak_bytes,
    }
    value = of[measure]()
    return math.inf if value is None else value


def best_of(answers: Iterable[Answer], measure: str) -> Answer | None:
    """The best of those that fit, the first if several are."""
    fitting = [answer for answer in answers if answer.fits]
    return min(fitting, key=lambda answer: value_by(measure, answer), default=None)


def search_of(document: Mapping[str, Any], origin: str) -> tuple[list[Answer], Finding]:
    """The plans that a search, or AxoNN's ranking, found, each once, and which is the answer: the
    best on the devices that were asked for."""
    found: dict[tuple[str, int], Answer] = {}
    shared = {key: document[key] for key in SHARED if key in document}
    for title, word in FRONTS.items():
        rows = document.get(title) or []
        for number, row in enumerate(rows if isinstance(rows, list) else [rows], start=1):
            if not isinstance(row, dict):
                raise ReportError(f"{origin}: {title} has something that is not a plan")
            machine = document.get("machine", row.get("machine"))
            answer = prediction_of(
                {**row, **shared, "machine": machine}, origin, f"{word} {number}", title
            )
            found.setdefault((answer.plan, answer.devices), answer)
    plans = [answer for answer in found.values() if is_plan(answer)]
    measure = _measure(document.get("objective"), "time")
    best = best_of(plans, measure)
    each = list(found.values())
    finding = Finding(measure, best, each, proof=_proof(document), asked=_asked(document, origin))
    return each, finding


def is_plan(answer: Answer) -> bool:
    """Whether it is one of a search's best plans, rather than best in something else."""
    return answer.front == "plans"


def _asked(document: Mapping[str, Any], origin: str) -> str:
    """What a search was for, in words."""
    if "devices" not in document or "batch" not in document:
        return ""
    of = Reader(document, origin)
    model, machine = names_of(of, question_in(document, origin))
    where = f"{several(of.whole('devices'), 'device')} of {machine}"
    return f"{model} on {where}, with a batch of {several(of.whole('batch'), 'sequence')}"


def _proof(document: Mapping[str, Any]) -> tuple[str, float | None] | None:
    words = document.get("certificate", document.get("correlation"))
    if words is None:
        return None
    gap = document.get("gap")
    known = isinstance(gap, int | float) and not isinstance(gap, bool) and gap >= 0
    return str(words), float(gap) if known and gap is not None else None


def sweep_of(
    rows: Sequence[tuple[str, Row]], study: Mapping[str, Any]
) -> tuple[list[Answer], list[tuple[str, str]], Finding]:
    """The answers of a sweep's rows, the points that have none with the reason, and the best;
    `study` is what is known of the sweep besides its rows."""
    points = {origin: point for origin, row in rows if isinstance(point := row.get("point"), dict)}
    varied = _varied(list(points.values()))
    found, failures = [], []
    for origin, row in rows:
        point = points.get(origin, {})
        if isinstance(row.get("prediction"), dict):
            found.append((prediction_of(_at_point(row, point, study), origin), row, point))
        else:
            name = label(point, varied) or str(row.get("id", origin))
            failures.append((name, str(row.get("reason") or row.get("status") or "")))
    answers = [answer for answer, _, _ in found]
    measure, title = _measure(study.get("sort"), "throughput"), str(study.get("title") or "")
    apart = [key for key in varied if key not in _rung(study)]
    ladders = [replace(ladder, study=title) for ladder in _ladders(found, apart)]
    best = best_of(answers, measure)
    return answers, failures, Finding(measure, best, answers, title=title, ladders=ladders)


def _ladders(found: Iterable[tuple[Answer, Row, Row]], apart: Sequence[str]) -> list[Ladder]:
    """The ladders that answers, with their rows and points, stand on; the values of some keys tell
    them apart."""
    each: dict[str, tuple[Row, str, list[Answer]]] = {}
    for answer, row, point in found:
        if isinstance(scaling := row.get("scaling"), dict):
            varied = {key: point[key] for key in apart if key in point}
            kind = str(scaling.get("kind"))
            each.setdefault(f"{kind} {varied}", (varied, kind, []))[2].append(answer)
    return [
        Ladder(varied, kind, sorted(rungs, key=lambda rung: rung.devices))
        for varied, kind, rungs in each.values()
    ]


def _measure(given: Any, usual: str) -> str:
    return given if isinstance(given, str) and given in MEASURES else usual


def _varied(points: Sequence[Row]) -> list[str]:
    keys = dict.fromkeys(key for point in points for key in point)
    return [key for key in keys if len({str(point.get(key)) for point in points}) > 1]


def _rung(study: Row) -> Sequence[str]:
    """The keys that the rungs of a scaling study set."""
    scaling = study.get("scaling")
    rungs = scaling.get("rungs") if isinstance(scaling, dict) else None
    first = rungs[0] if isinstance(rungs, list) and rungs else None
    return list(first) if isinstance(first, dict) else RUNG


def label(point: Row, varied: Sequence[str]) -> str:
    """What a point has that others have not, by the short names of its keys."""
    return ", ".join(f"{_short(key)}={point[key]}" for key in varied if key in point)


def _short(key: str) -> str:
    return next((key.removeprefix(head) for head in HEADS if key.startswith(head)), key)


def _at_point(row: Row, point: Row, study: Row) -> dict[str, Any]:
    """A row's prediction with what its point alone says: what was given and set of the model and of
    the machine, and where ranks land."""
    found = {**row["prediction"], "training": row.get("training"), "scaling": row.get("scaling")}
    if not point:
        return found
    for key, head in (("settings", "machine."), ("fields", "model.")):
        found[key] = {k.removeprefix(head): v for k, v in point.items() if k.startswith(head)}
    if isinstance(point.get("placement"), str):
        found["placement"] = {"policy": point["placement"]}
    asked = study["asked"] if isinstance(study.get("asked"), dict) else {}
    folder = str(asked.get("folder") or "")
    given = {key: located(str(point[key]), folder) for key in GIVEN if key in point}
    found["asked"] = {**given, "files": asked.get("files")}
    return found
