"""Global-norm clipping and AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def square_sum(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Sum of the gradients' squares, each gradient's share counted once over its copies."""
    dtype, shares = writes[0].dtype, op.attributes["shares"]
    norms = torch._foreach_norm(list(reads), dtype=dtype)
    squares = torch.stack(norms).to(dtype).square_()
    if any(share != 1 for share in shares):
        # As numbers: a tensor made of them would hold up the host until the device has it.
        torch._foreach_mul_(list(squares.unbind()), list(shares))
    writes[0].copy_(squares.sum())


def clip_scale(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """What every gradient is multiplied by: at most 1, less where the norm exceeds the clip.

    A gradient of the sum over kept tokens, divided by all tokens, is divided by the share that was
    kept besides, which is then the second entry of the second operand; the norm is already.
    """
    norm = torch.sqrt(reads[0], out=writes[0])
    if at.grad_norm is not None:
        at.grad_norm.copy_(norm)
    norm.add_(1e-6).reciprocal_().mul_(at.adamw.clip).clamp_(max=1.0)
    for total in reads[1:]:
        norm.div_(total[1])


def scale(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Clip a block's gradients, in place or into wider copies of them."""
    grads = reads[1 : 1 + len(writes)]
    if writes[0].dtype != grads[0].dtype:
        torch._foreach_copy_(list(writes), list(grads))
    torch._foreach_mul_(list(writes), reads[0][0])


def move(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Copy states between device and host; a write beyond the reads is a mark without bytes."""
    for source, target in zip(reads, writes, strict=False):
        target.copy_(source, non_blocking=True)


def adamw(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """One AdamW update of a block's parameters; bf16 ones follow their fp32 master copies.

    It is one fused call for each rate of decay: a call has one for all its tensors, which are of
    one dtype. Moments of another one are made as wide for it, and rounded back.
    """
    rates = decay_rates(op, at)
    count = len(rates)
    first, second, trained = (writes[i * count : (i + 1) * count] for i in range(3))
    step, lr = _step_and_rate(at)
    for rate in dict.fromkeys(rates):
        chosen = [i for i in range(count) if rates[i] == rate]
        weights, grads, means, squares = (
            [column[i] for i in chosen] for column in (trained, reads, first, second)
        )
        moments = [*means, *squares]
        wide = [each.to(weights[0].dtype) for each in moments]
        torch._fused_adamw_(
            weights,
            grads,
            wide[: len(chosen)],
            wide[len(chosen) :],
            [],
            [step] * len(chosen),
            amsgrad=False,
            lr=lr,
            beta1=at.adamw.beta1,
            beta2=at.adamw.beta2,
            weight_decay=rate,
            eps=at.adamw.eps,
            maximize=False,
        )
        if wide[0] is not moments[0]:
            torch._foreach_copy_(moments, wide)
    copy_masters(op, trained, writes[3 * count :])


def _step_and_rate(at: RankContext) -> tuple[torch.Tensor, Any]:
    """The step's number, one tensor for all since the kernel only reads it, and its rate: a number
    on the host where there are no `numbers` on the device."""
    if at.numbers is not None:
        return at.numbers.step, at.numbers.lr
    # Filled on the device: one made of a number on the host would hold up the host until all
    # kernels before it are done.
    return torch.full((), float(at.step), device=at.device), at.adamw.lr


def decay_rates(op: Op, at: RankContext) -> list[float]:
    """The rate of decay of each parameter of an update."""
    return [at.adamw.weight_decay if decay else 0.0 for decay in op.attributes["decays"]]


def copy_masters(op: Op, trained: Tensors, copies: Tensors) -> None:
    """Copy what was trained in a wider precision into the parameters that follow it."""
    if copies:
        masters = zip(trained, op.attributes["copied"], strict=True)
        torch._foreach_copy_(list(copies), [master for master, copied in masters if copied])
