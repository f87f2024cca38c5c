"""Scaling studies: which model, devices and batch stand on each rung, and what efficiency is.

Efficiency is a rung's model FLOP/s per device over that of the first rung. Where all rungs train
one model this is the ratio of tokens/s per device: the textbook's parallel efficiency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simgpt.question import value
from simgpt.question_rows import QuestionError, Table
from topologies.records import record

Point = Table  # of a study: a question
KINDS = ("weak", "strong")
KEYS = ("kind", "devices", "ladder", "plan")
RUNG = ("model", "devices", "batch", "plan")


@record(slots=False)
class Scaling:
    """A kind of scaling, and what its rungs set over the rest of the study."""

    kind: str
    rungs: tuple[Point, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that a rung sets."""
        return tuple(self.rungs[0])


def read_scaling(table: Mapping[str, Any], base: Mapping[str, Any]) -> Scaling:
    """A study's `[scaling]`: `kind` and `devices`, or a `ladder` of [model, devices, batch].

    Strong scaling keeps the batch; weak scaling lets it grow with the devices from the study's
    `batch`, which is the first rung's, unless a ladder says what grows.
    """
    for key in table:
        if key not in KEYS:
            raise QuestionError(f"unknown key scaling.{key}; known: {', '.join(KEYS)}")
    kind = table.get("kind")
    if kind not in KINDS:
        raise QuestionError(f'scaling.kind = {kind} must be "weak" or "strong"')
    if ("devices" in table) == ("ladder" in table):
        raise QuestionError("scaling needs either devices = [512, 1024, …] or a ladder")
    if "ladder" in table:
        if kind == "strong":
            raise QuestionError("scaling.ladder is for weak scaling; strong scaling needs devices")
        rungs = [_rung(row) for row in _list("ladder", table["ladder"])]
    else:
        counts = [value("devices", count) for count in _list("devices", table["devices"])]
        check_once("scaling.devices", counts)
        rungs = _strong(counts) if kind == "strong" else _weak(counts, base)
    if "plan" in table:
        rungs = [{"plan": value("plan", table["plan"]), **rung} for rung in rungs]
    if len({tuple(rung) for rung in rungs}) > 1:
        raise QuestionError("the rows of scaling.ladder must all give a plan, or none")
    return Scaling(kind, tuple(rungs))


def _list(key: str, given: Any) -> list[Any]:
    if not isinstance(given, list) or not given:
        raise QuestionError(f"scaling.{key} = {given} must be a list with something in it")
    return given


def _strong(counts: list[int]) -> list[Point]:
    return [{"devices": count} for count in counts]


def _weak(counts: list[int], base: Mapping[str, Any]) -> list[Point]:
    batch = base.get("batch")
    if batch is None:
        raise QuestionError(
            "weak scaling grows the batch with the devices: give batch, that of the first rung"
        )
    rungs = []
    for count in counts:
        grown, rest = divmod(batch * count, counts[0])
        if rest:
            raise QuestionError(
                f"batch = {batch} on {counts[0]} devices does not grow to a whole number on {count}"
            )
        rungs.append({"devices": count, "batch": grown})
    return rungs


def _rung(row: Any) -> Point:
    if not isinstance(row, list) or len(row) not in (3, 4):
        raise QuestionError(
            f"scaling.ladder has {row}, but must have [model, devices, batch] or a plan too"
        )
    return {key: value(key, item) for key, item in zip(RUNG, row, strict=False)}


def check_once(key: str, values: Sequence[Any]) -> None:
    """A QuestionError if one of a key's values stands twice, which would be predicted twice."""
    seen = set()
    for each in values:
        known = str(each) if isinstance(each, list) else each
        if known in seen:
            raise QuestionError(f"{key} has {each} twice")
        seen.add(known)


def with_efficiency(row: dict[str, Any], first: Mapping[str, Any] | None, kind: str) -> None:
    """Add to a row how it scales from the first one of its ladder; null where either cannot run."""
    found, base = row["prediction"], None if first is None else first["prediction"]
    rate = "model_flops_per_s_per_device"
    fits = row["status"] == "ok" and first is not None and first["status"] == "ok"
    row["scaling"] = {
        "kind": kind,
        "tokens_per_s_per_device": found["tokens_per_s"] / found["devices"] if found else None,
        "efficiency": found[rate] / base[rate] if fits and found and base else None,
    }


def with_published(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the published step of its model, machine, devices and batch; null where there is
    none, or no prediction to stand beside it."""
    from validation.overlay import published_point

    found = row["prediction"]
    published = published_point(row["point"], found["plan"]["batch"]) if found else None
    return {**row, "published": published and published.beside(found["step_s"])}
