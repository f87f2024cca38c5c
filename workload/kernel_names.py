"""Which kernel performs an op, where one kind of op has several that take other times."""

from __future__ import annotations

from workload.op import ATTENTIONS, CAUSAL, Op


def kernel_of(op: Op) -> str:
    """The op's kind and, of attention on a part of each sequence, how the keys at hand came there
    ("attention.ring"), and whether none of them is masked ("attention.ring.unmasked")."""
    if op.kind not in ATTENTIONS or "context" not in op.attributes:
        return op.kind
    unmasked = "" if op.attributes.get(CAUSAL, True) else ".unmasked"
    return f"{op.kind}.{op.attributes['context']}{unmasked}"
