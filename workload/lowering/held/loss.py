"""Copies of the logits that a loss makes beside those of the program.

The program writes fp32 logits, exponentials in their place, and the gradient beside them in the
precision of training. PyTorch's cross-entropy makes log-probabilities, and for their gradient two
fp32 copies more, of which the gradient of training takes the place of a half; a compiled loss
writes what it changes beside its input.
Source: pytorch/pytorch, aten/src/ATen/native/SoftMax.cpp and LossNLL.cpp, log_softmax and nll_loss
and their gradients (tools/autograd/derivatives.yaml says what they keep).
"""

from __future__ import annotations

from collections.abc import Sequence

from workload.lowering.builder import Builder
from workload.op import ITEM_BYTES, Buffer, Op, altered

FIRST, LAST = "loss_sums", "loss_grad"  # kinds of ops between which the copies are there
WIDE = "fp32"


def with_copies_of_logits(b: Builder, ops: Sequence[Op]) -> list[Op]:
    """The ops, with copies of `loss_bytes` for each logit that the loss writes and its gradient
    reads."""
    if not b.held.loss_bytes or b.dtype == b.wide:
        return list(ops)
    result, made = list(ops), tuple[str, ...]()
    for at, op in enumerate(ops):
        if op.kind == FIRST:
            made = _declared(b, op.writes[-1])
            result[at] = altered(op, writes=(*op.writes, *made))
        elif op.kind == LAST:
            result[at] = altered(op, reads=(*op.reads, *made))
    return result


def _declared(b: Builder, logits: str) -> tuple[str, ...]:
    """The buffers of the copies: whole ones in fp32, and a half in the precision of training."""
    shape, left, names = b.buffers[logits].shape, b.held.loss_bytes, list[str]()
    while left > 0:
        dtype = WIDE if left >= ITEM_BYTES[WIDE] else b.dtype
        names.append(b.add(Buffer(f"{logits}.beside{len(names)}", shape, dtype, "workspace")))
        left -= ITEM_BYTES[dtype]
    return tuple(names)
