"""What keeps experts evenly used: the balancing loss and its gradient, counts of choices, and the
biases of selection that follow them (letters: workload/lowering/layers/mixers/experts/balance.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.slices import cut, wide_rows
from executor.rank_context import RankContext
from workload.model.experts import SIGMOID
from workload.op import Op

Tensors = Sequence[torch.Tensor]
COPIES = 4


def balance_sums(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """For each run of tokens how many of a rank's rows chose each expert, and the sums of their
    shares."""
    logits, chosen = reads
    sums = writes[0].zero_()
    for part in wide_rows(logits, at, COPIES):
        shares, _ = _shares(op, cut(logits, part).to(sums.dtype))
        runs = _runs(op, part, logits, at)
        sums[1].index_add_(0, runs, shares)
        picked = torch.zeros_like(shares).scatter_(1, cut(chosen, part), 1)
        sums[0].index_add_(0, runs, picked)


def balance_loss(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Add a micro-batch's part of a layer's balancing loss to the step's; the first overwrites."""
    counts, shares = reads[0]
    own = (counts * shares).sum() * _factor(op, counts) / op.attributes["parts"]
    if op.attributes["first"]:
        writes[0].zero_()
    writes[0].add_(own)


def balance_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Add the balancing loss' gradient to that of the logits, in place; counts have none."""
    sums, logits = reads[:2]
    factor = _factor(op, sums[0])
    for part in wide_rows(logits, at, COPIES):
        shares, slopes = _shares(op, cut(logits, part).to(sums.dtype))
        own = sums[0][_runs(op, part, logits, at)] * factor
        own.sub_((own * shares).sum(1, keepdim=True)).mul_(shares).mul_(slopes)
        cut(writes[0], part).add_(own)


def count_choices(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Add how often each expert was chosen to the step's counts; the first overwrites."""
    chosen = reads[0].view(-1)
    if op.attributes["first"]:
        writes[0].zero_()
    writes[0].scatter_add_(0, chosen, torch.ones_like(chosen, dtype=writes[0].dtype))


def balance_bias(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Move each expert's bias up where it was chosen less often than the mean, else down."""
    counts = reads[0]
    writes[0].add_((counts.mean() - counts).sign_(), alpha=op.attributes["rate"])


def _factor(op: Op, counts: torch.Tensor) -> float:
    """What c_e p_e is multiplied by: a E / (k n^2) and a run's part of the step's n tokens."""
    about = op.attributes
    each = int(about["topk"] * about["run"] * about["tokens"])
    return float(about["coefficient"]) * counts.shape[-1] / each


def _shares(op: Op, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | float]:
    """Each expert's share of a token's scores, and by what the slope of a share differs from that
    of a softmax."""
    if op.attributes["router"] != SIGMOID:
        return logits.softmax(1), 1.0
    scores = logits.sigmoid()
    return scores / scores.sum(1, keepdim=True), 1 - scores


def _runs(op: Op, part: slice, logits: torch.Tensor, at: RankContext) -> torch.Tensor:
    """The run of each of some rows, of which x may have parts."""
    rows = op.attributes["rows"]
    first = at.part_of("rows") * len(logits) if len(logits) < rows else 0
    places = torch.arange(first + part.start, first + part.stop, device=logits.device)
    runs: torch.Tensor = places * op.attributes["runs"] // rows
    return runs
