"""Plans that do not support hybrids, in words."""

from __future__ import annotations

from collections.abc import Iterator

from workload.gpt import GPT
from workload.models import mamba2
from workload.models.pattern import ATTENTION, MAMBA, MLP
from workload.plan import Plan
from workload.recomputation.parts import CORE, PARTS, parts_of
from workload.recomputation.parts import MLP as OF_MLP


def refusals(gpt: GPT, plan: Plan) -> Iterator[str]:
    """What of a plan a hybrid cannot have."""
    if not gpt.pattern:
        return
    has, recompute = f"{gpt.name}'s pattern", plan.training.recompute
    for part, mixer in {CORE: ATTENTION, OF_MLP: MLP}.items():
        if part in parts_of(recompute) and mixer not in gpt.pattern:
            yield f"recompute={recompute} names {PARTS[part]}, of which {has} has no layer"
    if MAMBA in gpt.pattern and gpt.sequence % mamba2.chunk_of(gpt):
        yield f"ssm_chunk={gpt.mamba2.chunk} does not divide sequence={gpt.sequence}"
