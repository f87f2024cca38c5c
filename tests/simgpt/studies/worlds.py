"""Small studies that take milliseconds a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simgpt.studies.study import Study, study_of

SMALL: dict[str, Any] = {
    "model": "tiny-30k",
    "machine": "host",
    "devices": 2,
    "batch": 4,
    "set": {"precision": "fp32"},
}
# tp=3 divides nothing, zero does not matter to z=2: nine rows, six of which can run.
GRID = {**SMALL, "sweep": {"plan": {"tp": [1, 2, 3]}, "zero": [0, 1, 2]}}


def study(document: dict[str, Any], **more: Any) -> Study:
    return study_of({**document, **more}, title="a study", folder=Path())
