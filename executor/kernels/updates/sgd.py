"""SGD, plain and with momentum, and as LOMO has it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.optimizer import copy_masters, decay_rates
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def sgd(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """One update of a block's parameters, a fused call for each rate of decay.

    The momentum begins at zero, to which the first gradient is added whole.
    """
    rates = decay_rates(op, at)
    count, momentum = len(rates), op.attributes["momentum"]
    sums = writes[:count] if momentum else []
    trained = writes[count : 2 * count] if momentum else writes[:count]
    for rate in dict.fromkeys(rates):
        chosen = [i for i in range(count) if rates[i] == rate]
        torch._fused_sgd_(
            [trained[i] for i in chosen],
            [reads[i] for i in chosen],
            [sums[i] for i in chosen] if momentum else [],
            weight_decay=rate,
            momentum=momentum,
            lr=at.adamw.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
    copy_masters(op, trained, writes[len(sums) + count :])


def lomo(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """w -= lr (g + decay w), each in its own precision."""
    lr = at.adamw.lr
    for grad, weight, rate in zip(reads, writes, decay_rates(op, at), strict=False):
        flat = weight.view(-1)
        flat.mul_(1 - lr * rate).add_(grad.view(-1)[: flat.numel()], alpha=-lr)
