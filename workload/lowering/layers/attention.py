"""The attention core on fused query, key and value, and the rotation of queries and keys.

Heads are split over x, those of queries and those of keys and values alike; what y then computes in
copies carries `replicas`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from workload.lowering.builder import Builder
from workload.lowering.layers import context_parallel, dropout, unfused
from workload.op import RECOMPUTE, Part


@dataclass(frozen=True, slots=True)
class Core:
    """Names of what the core leaves behind: its input (rotated as it is), its output, the rest.

    `inner` is what selective recomputation drops: the log-sum-exp or, unfused, the squares. `place`
    is what dropout draws by.
    """

    qkv: str
    context: str
    inner: tuple[str, ...]
    place: str


def forward(b: Builder, owner: Part, qkv: str) -> Core:
    """Emit the core, behind the rotation, if any."""
    _rotate(b, "rope", "rope", qkv)
    return _core(b, f"{owner}.attention", qkv)


def again(b: Builder, kept: Core) -> Core:
    """Emit the core once more, as a block of its own within the backward pass.

    As with Megatron's checkpoint around the core, the first context stays for the next linear's
    gradient, and the gradient of the core works on the second.
    """
    block, b.block = b.block, replace(b.block, phase=RECOMPUTE)
    core = _core(b, kept.place, kept.qkv)
    b.block = block
    return core


def backward(b: Builder, core: Core, grad: str) -> str:
    """Emit the gradient of the fused tensor from that of the context."""
    shape, name = _shape(b, core.place), "attention"
    out = b.tensor(f"{name}.dqkv", b.buffers[core.qkv].shape)
    if b.plan.attention == "unfused":
        unfused.backward(b, name, (core.qkv, *core.inner), grad, out, shape)
    elif b.plan.context > 1:
        context_parallel.backward(b, (core.qkv, core.context, *core.inner), grad, out, shape)
    else:
        reads = [grad, core.qkv, core.context, *core.inner]
        flops = 8 * b.rows * b.gpt.sequence * shape["heads"] * shape["width"]
        replicas = b.grid.y
        b.op(
            f"{name}.grad", "attention_grad", reads, [out], flops=flops, replicas=replicas, **shape
        )
    _rotate(b, "rope.grad", "rope_grad", out)
    return out


def _core(b: Builder, place: str, qkv: str) -> Core:
    shape = _shape(b, place)
    if b.plan.attention == "unfused":
        return Core(qkv, *unfused.forward(b, place, qkv, shape), place)
    if b.plan.context > 1:
        return Core(qkv, *context_parallel.forward(b, qkv, shape), place)
    heads, width = shape["heads"], shape["width"]
    context = b.tensor("attention.o", (b.rows, heads * width))
    lse_shape = (b.plan.micro_batch, heads, b.gpt.sequence)
    logsumexp = b.tensor("attention.lse", lse_shape, b.wide)
    b.op(
        "attention",
        "attention",
        [qkv],
        [context, logsumexp],
        flops=4 * b.rows * b.gpt.sequence * heads * width,
        replicas=b.grid.y,
        **shape,
    )
    return Core(qkv, context, (logsumexp,), place)


def _rotate(b: Builder, name: str, kind: str, qkv: str) -> None:
    """Emit the rotation of queries and keys in place; values are neither read nor written."""
    if b.gpt.positions == "rope":
        shape = _shape(b)
        turned = b.rows * (shape["heads"] + shape["kv_heads"]) * shape["width"]
        nbytes = 2 * turned * b.item_bytes()
        b.op(name, kind, [qkv], [qkv], nbytes=nbytes, base=b.gpt.rope_base, **shape)


def _shape(b: Builder, place: str = "") -> dict[str, Any]:
    """One rank's heads of queries, and of keys and values; a head's width; the sequence.

    A flash kernel drops probabilities itself, so it must know of their place.
    """
    gpt, x = b.gpt, b.grid.x
    shape: dict[str, Any] = {
        "heads": gpt.heads // x,
        "kv_heads": gpt.key_heads // x,
        "width": gpt.width,
    }
    shape |= {"sequence": gpt.sequence, "alibi": gpt.positions == "alibi"}
    drops = dropout.how(b, place) if place and b.plan.attention == "flash" else {}
    return {**shape, **drops}
