"""What a hand-written profile needs for a step of a small model."""

from __future__ import annotations

from functools import cache

from workload.gpt import find_model
from workload.kinds import KINDS, Costs
from workload.lowering import lower
from workload.plan_text import parse_plan


@cache
def measured_by_bytes() -> tuple[str, ...]:
    """The kinds of ops of a dense model's step in fp32 whose times a profile has by bytes."""
    ops = lower(find_model("tiny-30k"), parse_plan("dp=2,mbs=1,precision=fp32", batch=4)).ops
    return tuple(dict.fromkeys(op.kind for op in ops if KINDS[op.kind].costs is Costs.MEMORY))
