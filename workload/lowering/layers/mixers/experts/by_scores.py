"""The weighted sum of rows that returned from places of experts, whose scores stayed at home.

What returned is kept for the gradient of the scores: as many rows as places.
Source: Tutel (2206.03382), section 4.2; microsoft/tutel@04e07ba, tutel/impls/fast_dispatch.py,
GatingDecoder, which keeps it as `expert_output`.
Not modelled: its rows in fp32 on AMD, one kernel for each of a token's choices, and scores divided
by the sum of the chosen.
"""

from __future__ import annotations

from topologies.records import record
from workload.lowering.builder import Builder
from workload.lowering.layers.mixers.experts.dispatch import Routed, moved


@record
class Scored:
    """Names of all scores, and of the rows that returned."""

    scores: str
    returned: str = ""


def combined(b: Builder, kept: Scored, source: str, routed: Routed) -> str:
    """Emit the sum for each token of `source`."""
    reads = [kept.returned, kept.scores, routed.order]
    return moved(b, "combine", "sum_weighted_rows", reads, b.buffers[source].shape)


def combined_grad(b: Builder, kept: Scored, grad: str, routed: Routed) -> tuple[str, str]:
    """Emit the gradients of the rows that returned and of all scores, where x splits an expert's
    width each rank's own part of the latter."""
    shape, reads = b.buffers[kept.returned].shape, [grad, kept.scores, routed.order]
    rows = moved(b, "combine.grad", "take_weighted_rows", reads, shape)
    scores = b.tensor("dispatch.scores.grad", b.buffers[kept.scores].shape, b.wide)
    reads = [grad, kept.returned, routed.order]
    b.op("combine.scores.grad", "score_rows", reads, [scores], topk=b.gpt.moe.topk)
    b.all_reduce("combine.scores.grad.reduce", scores, *b.shards_of("width"))
    return rows, scores
