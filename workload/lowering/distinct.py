"""The distinct ops of a plan: few, since layers, micro-batches and stages repeat."""

from __future__ import annotations

import json
from collections.abc import Iterator

from workload.gpt import GPT
from workload.lowering import lower_slots
from workload.op import Op
from workload.plan import Plan
from workload.program import Program
from workload.stages import like_stages, samples, stage_slots


def signature(op: Op) -> str:
    """What two ops that take equally long on a device have in common.

    >>> from workload.op import Op
    >>> signature(Op("l0.gelu", "gelu", ("a",), ("b",), "l0", nbytes=64))
    '["gelu","bf16",64,0,{}]'

    Attributes with an entry for each operand name or weigh these, and take no time.
    """
    how = {key: value for key, value in op.attributes.items() if not isinstance(value, tuple)}
    about = [op.kind, op.dtype, op.nbytes, op.flops, how]
    return json.dumps(about, sort_keys=True, separators=(",", ":"))


def distinct_ops(gpt: GPT, plan: Plan) -> dict[str, tuple[Op, Program]]:
    """Every distinct compute op of any stage by its signature, with a program that has it."""
    found: dict[str, tuple[Op, Program]] = {}
    for program in _samples(gpt, plan):
        for op in program.ops:
            if not op.communicates and op.kind != "fence":
                found.setdefault(signature(op), (op, program))
    return found


def _samples(gpt: GPT, plan: Plan) -> Iterator[Program]:
    """For each kind of stage a program of the micro-batches that stand for all."""
    for stage in sorted(set(like_stages(gpt, plan))):
        order = stage_slots(plan, stage)
        chosen = [slot for slot in order if slot.micro_batch in samples(plan)]
        yield lower_slots(gpt, plan, stage, chosen)
