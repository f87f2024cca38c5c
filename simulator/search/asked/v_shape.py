"""Schedules in the shape of a V: each stage has a chunk on the way down and one on the way back.

All plans of a part of a problem have one of these schedules. Its slots are those of a backward pass
that is split. Bounds take no slot's own time, but what a stage has on one stream: all that the
first stage has, which holds both ends of the model, and all that another one has behind the first
forward slots of the stages above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workload.pipeline.schedule import V_SHAPED

CHUNKS = 2
SPLIT = "zb-h1"  # a schedule of one stage whose slots are as in a V


def in_v(fixed: Mapping[str, Any]) -> bool:
    """Whether all plans with these fields have such a schedule."""
    return fixed.get("schedule") in V_SHAPED


def of_one_stage(schedule: str) -> str:
    """A schedule that splits backward passes as this one does, and runs without a pipeline. Bounds
    of entries of both take GPipe's as 1F1B's, whose backward pass begins with what the forward pass
    left, and gathers nothing again."""
    if schedule == "gpipe":
        return "1f1b"
    return SPLIT if schedule in V_SHAPED else schedule


def is_split(schedule: str) -> bool:
    """Whether a schedule splits backward passes."""
    return schedule.startswith("zb") or schedule in V_SHAPED


def can_run(schedule: str, pp: int, micro_batches: int) -> bool:
    """Whether so many stages can run a schedule in a V with so many micro-batches."""
    return pp > 1 and (schedule != "dualpipe-v" or micro_batches >= 2 * pp)


def places(stage: int, pp: int, chunks: int, *, in_v: bool) -> list[int]:
    """The numbers of a stage's chunks in the model."""
    return [stage, 2 * pp - 1 - stage] if in_v else list(range(stage, pp * chunks, pp))
