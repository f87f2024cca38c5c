"""Under which kinds a stack says of how many kernels an op is."""

from __future__ import annotations

from workload.models.rope_scaling import scaling_of
from workload.op import Op

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
