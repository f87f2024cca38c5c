"""A row of a study's results as a line of its file, and why a line is not the row of a point.

What a table, a ranking or an efficiency reads of a row is looked at here, so that they need not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simgpt.options import strict
from simgpt.studies.evaluate import Row
from simgpt.studies.scaling import Point
from topologies.files.reading import open_regular
from validation.checksums import CHECKSUM, checksum_of

KEYS = ("id", "point", "status", "reason", "prediction", "training", "scaling", CHECKSUM)
STATUSES = ("ok", "infeasible", "error")
MOST_BYTES = 2**24  # of a row; a prediction has some KiB
MOST = 1e300
PREDICTED = (
    "step_s",
    "tokens_per_s",
    "model_flops_per_s_per_device",
    "mfu",
    "memory.peak_bytes",
    "memory.capacity_bytes",
    "cost.node_s_per_step",
    "plan.batch",
    "devices",
    "difference_error",
)
TRAINED = ("time_s", "node_s")


def line_of(row: Row) -> bytes:
    """A row as it stands in the file, with its checksum."""
    content = strict({key: value for key, value in row.items() if key != CHECKSUM})
    whole = content | {CHECKSUM: checksum_of(content)}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def row_of(line: bytes) -> Row:
    """The row of a line that was checked, without its checksum."""
    row: Row = json.loads(line)
    return {key: value for key, value in row.items() if key != CHECKSUM}


def lines_in(path: Path) -> Iterator[bytes]:
    """The lines of a file of rows, up to one that is longer than any row."""
    with open(open_regular(path), "rb") as file:
        while line := file.readline(MOST_BYTES):
            yield line
            if len(line) == MOST_BYTES:
                return


def checked(line: bytes, points: Sequence[Point], scaled: bool) -> tuple[int, str]:
    """The number of the point that a line is the whole row of, or -1 and why it is none; whether
    its study is one of scaling decides what the row should have."""
    if not line.endswith(b"\n"):
        return -1, "is cut short"
    try:
        row = json.loads(line)
        if not isinstance(row, dict) or row.get(CHECKSUM) is None:
            return -1, "has no checksum"
        if line != line_of(row):
            return -1, "is not as it was written (its checksum tells)"
    except (ValueError, RecursionError):
        return -1, "is not JSON"
    number = row.get("id")
    if type(number) is not int or not 0 <= number < len(points):
        return -1, "is not a row of that point"
    same = json.loads(json.dumps(points[number]))
    if row.get("point") != same or not _has_shape(row, "tokens" in same, scaled):
        return -1, "is not a row of that point"
    if row["status"] == "error":  # of a bug, or an accident: neither need be there any more
        return -1, "has the status error"
    return number, ""


def _has_shape(row: Row, trained: bool, scaled: bool) -> bool:
    """Whether a row has all keys of a row and nothing else, each in its kind."""
    if tuple(row) != KEYS or row["status"] not in STATUSES or not isinstance(row["reason"], str):
        return False
    prediction, training, scaling = (row[key] for key in ("prediction", "training", "scaling"))
    is_scaled = isinstance(scaling, dict) and _is_number(scaling, "efficiency", maybe=True)
    if not (is_scaled if scaled else scaling is None):
        return False
    if prediction is None:
        return row["status"] != "ok" and training is None
    if not (isinstance(training, dict) and _is_training(training) if trained else not training):
        return False
    return isinstance(prediction, dict) and _is_prediction(prediction)


def _is_prediction(found: Mapping[str, Any]) -> bool:
    parts = found.get("breakdown_s")
    return (
        all(_is_number(found, key) for key in PREDICTED)
        and found["step_s"] > 0
        and _is_number(found, "cost.energy_j_per_step", maybe=True)
        and all(isinstance(found.get(key), str) for key in ("plan_string", "device"))
        and isinstance(parts, dict)
        and all(map(_number, parts.values()))
    )


def _is_training(found: Mapping[str, Any]) -> bool:
    return all(_is_number(found, key) for key in TRAINED) and _is_number(
        found, "energy_j", maybe=True
    )


def _is_number(table: Mapping[str, Any], key: str, *, maybe: bool = False) -> bool:
    """Whether a table has a number under a dotted key, or null where that `maybe` is."""
    found: Any = table
    for part in key.split("."):
        if not isinstance(found, dict) or part not in found:
            return False
        found = found[part]
    return (maybe and found is None) or _number(found)


def _number(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and abs(value) < MOST
