"""Under which kinds a stack says of how many kernels an op is, and ops as they then are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workload.models.rope_scaling import scaling_of
from workload.op import Op, altered
from workload.sizes.rounding import scaled

ROTATIONS = ("rope", "rope_grad")


def kind_in_steps(op: Op) -> str:
    """Under which kind a stack has an op's kernels: that of the op, but "scaled_rope" for a
    rotation that multiplies queries and keys too, as YaRN does, which fused kernels cannot.

    >>> yarn = {"scaling": "yarn:factor=32:original_max_position_embeddings=4096"}
    >>> kind_in_steps(Op("a", "rope_grad", (), (), attributes=yarn))
    'scaled_rope_grad'
    """
    if op.kind not in ROTATIONS:
        return op.kind
    scaling = scaling_of(str(op.attributes["scaling"]))
    return f"scaled_{op.kind}" if scaling and scaling.attention_factor != 1 else op.kind


def in_kernels(
    ops: Sequence[Op], passes: Mapping[str, float], launches: Mapping[str, int]
) -> list[Op]:
    """Ops that are several kernels: what goes through memory, and what the host issues."""

    def whole(op: Op) -> Op:
        kind = kind_in_steps(op)
        issued, share = launches.get(kind, launches.get(op.kind)), passes.get(kind)
        share = passes.get(op.kind) if share is None else share
        if issued is not None and op.launches:
            op = altered(op, launches=issued)
        return op if share is None else altered(op, nbytes=scaled(op.nbytes, share))

    return [whole(op) for op in ops]
