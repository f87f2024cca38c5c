"""Routing of tokens to experts, rows moved to places and back, and what experts do elementwise.

Letters: T tokens of a rank, of `hidden` columns; E experts, k of them for each token; S places of
rows that are sent, or of those that came. `chosen` and `scores` are (T, k), the best first. An
`order` (S,) has which choice, token * k + number, is sent to each place, EMPTY where there is none.
`counts` has rows, by rank and then by expert of that rank. Integers are int64. Kernels raise
nothing: shapes are the program's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from executor.kernels.slices import wide_rows
from executor.rank_context import RankContext
from workload.model.experts import SIGMOID, SOFTMAX
from workload.op import Op

Tensors = Sequence[torch.Tensor]
EMPTY = -1  # a place that no row was sent to


def route(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The experts of each token, the best first, and their scores, of logits (T, E) and perhaps
    biases (E,), which count for the choice alone. Of equal logits the expert with the lower number
    is chosen, so that every split of a model chooses the same."""
    logits, (scores, chosen) = reads[0].to(writes[0].dtype), writes
    preferred = _preferred(op, logits, *reads[1:])
    order = torch.sort(preferred, dim=1, descending=True, stable=True).indices
    chosen.copy_(order[:, : op.attributes["topk"]])
    scores.copy_(_scores(logits, chosen, op) * op.attributes["factor"])
    if at.chosen is not None:
        at.chosen.add(op, chosen)


def _preferred(op: Op, logits: torch.Tensor, biases: torch.Tensor | None = None) -> torch.Tensor:
    """What experts are chosen by: logits, or scores with biases; those of groups that are left out
    are below all others. A group stands for the best of its experts, or for the sum of its best two
    scores. Source: DeepSeek-V2's and V3's released code, class MoEGate."""
    groups, sums = op.attributes.get("groups", 0), op.attributes["router"] == SIGMOID
    found = logits.sigmoid() if sums and (groups or biases is not None) else logits
    found = found if biases is None else found + biases
    if not groups:
        return found
    each = found.view(len(found), groups, -1)
    best = each.topk(min(2, each.shape[2]), 2).values.sum(2) if sums else each.amax(2)
    order = torch.sort(best, dim=1, descending=True, stable=True).indices
    out = torch.ones_like(best, dtype=torch.bool)
    out.scatter_(1, order[:, : op.attributes["topk_groups"]], False)
    return each.masked_fill(out[:, :, None], -torch.inf).view(found.shape)


def route_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The gradient of the logits (T, E) from that of the scores, the logits and `chosen`; the
    choice itself has none."""
    grad, logits, chosen = reads[0] * op.attributes["factor"], reads[1].to(reads[0].dtype), reads[2]
    scores = _scores(logits, chosen, op)
    if op.attributes["router"] == SIGMOID:
        plain = logits.gather(1, chosen).sigmoid()
        total = plain.sum(1, keepdim=True)
        inner = (grad - (grad * scores).sum(1, keepdim=True)) / total
        part = inner * plain * (1 - plain)
        writes[0].copy_(torch.zeros_like(logits).scatter_(1, chosen, part))
        return
    inner = scores * (grad - (grad * scores).sum(1, keepdim=True))
    if op.attributes["router"] != SOFTMAX:
        writes[0].copy_(torch.zeros_like(logits).scatter_(1, chosen, inner))
        return
    whole = -logits.softmax(1) * (grad * scores).sum(1, keepdim=True)
    writes[0].copy_(whole.scatter_add_(1, chosen, grad * scores))


def _scores(logits: torch.Tensor, chosen: torch.Tensor, op: Op) -> torch.Tensor:
    """The scores of the chosen experts, not yet scaled."""
    own = logits.gather(1, chosen)
    if op.attributes["router"] == SOFTMAX:
        return (own - logits.logsumexp(1, keepdim=True)).exp()
    if op.attributes["router"] == SIGMOID:
        plain = own.sigmoid()
        return plain / plain.sum(1, keepdim=True)
    return own.softmax(1)


def places(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The `order` of `chosen`, by expert and then by token, and the rows of each expert (E,).

    With `places` for each expert, what comes after these is dropped, and the rest stays empty.
    """
    chosen, (order, counts) = reads[0].view(-1), writes
    most = op.attributes["places"]
    by_expert = torch.sort(chosen, stable=True).indices
    counts.zero_().scatter_add_(0, chosen, torch.ones_like(chosen))
    if not most:
        order.copy_(by_expert)
        return
    owner = chosen[by_expert]
    rank = torch.arange(len(owner), device=owner.device) - (counts.cumsum(0) - counts)[owner]
    order.copy_(placed(by_expert, torch.where(rank < most, owner * most + rank, EMPTY), len(order)))
    counts.fill_(most)


def take_rows(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The row of the token at each place, (S, hidden) of (T, hidden); zeros where there is none."""
    rows, order = reads
    torch.index_select(rows, 0, order.clamp(min=0) // op.attributes["topk"], out=writes[0])
    writes[0].masked_fill_((order == EMPTY)[:, None], 0)


def sum_rows(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """For each token the sum of what is at its places, (T, hidden) of (S, hidden), in the order of
    its choices, so that every split of a model rounds alike."""
    rows, order = reads
    topk = op.attributes["topk"]
    numbers = torch.arange(len(order), device=order.device)
    by_choice = placed(numbers, order, len(writes[0]) * topk).view(-1, topk)
    writes[0].zero_()
    if not len(rows):  # of a rank whose experts no token chose
        return
    for part in wide_rows(writes[0], at, copies=2):
        for number in range(topk):
            own = by_choice[part, number]
            writes[0][part].add_(torch.where((own != EMPTY)[:, None], rows[own.clamp(min=0)], 0))


def take_scores(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The score of the choice at each place, (S,) of (T, k); zero where there is none."""
    scores, order = reads
    taken = scores.view(-1)[order.clamp(min=0)]
    writes[0].copy_(torch.where(order == EMPTY, 0, taken))


def put_scores(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """What is at the places of each token's choices, (T, k) of (S,); zero for what was dropped."""
    values, order = reads
    flat = values.new_zeros(writes[0].numel() + 1)
    flat[torch.where(order == EMPTY, len(flat) - 1, order)] = values
    writes[0].view(-1).copy_(flat[:-1])


def placed(values: torch.Tensor, at: torch.Tensor, count: int) -> torch.Tensor:
    """Values at `count` places, EMPTY where there is none; `at` is the place of each value, or
    EMPTY for one that is left out.

    No shape depends on the values, so that a GPU's host waits for nothing.
    """
    found = torch.full((count + 1,), EMPTY, dtype=values.dtype, device=values.device)
    found[torch.where(at == EMPTY, count, at)] = values
    return found[:-1]


def sort_rows(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Rows that arrived by rank and then by expert, by expert and then by rank; both are (S,
    hidden), or scores (S, 1)."""
    rows, counts = reads
    torch.index_select(rows, 0, _by_expert(counts, op, len(rows)), out=writes[0])


def unsort_rows(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The reverse of `sort_rows`."""
    rows, counts = reads
    writes[0][_by_expert(counts, op, len(rows))] = rows


def _by_expert(counts: torch.Tensor, op: Op, rows: int) -> torch.Tensor:
    """Where the rows that are by expert stand among those that are by rank."""
    local = op.attributes["local"]
    owner = torch.arange(local, device=counts.device).repeat(len(counts) // local)
    return torch.sort(owner.repeat_interleave(counts, output_size=rows), stable=True).indices


def parts_of(op: Op, counts: torch.Tensor, rows: int) -> Iterator[tuple[int, slice]]:
    """Each expert of this rank with its rows, given how many it gets from each rank: equally many
    where experts have places."""
    local, start = op.attributes["count"], 0
    each = (
        [rows // local] * local if op.attributes["even"] else counts.view(-1, local).sum(0).tolist()
    )
    for number, count in enumerate(each):
        yield number, slice(start, start + count)
        start += count


def weighted_swiglu(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """silu(gate) * up, (S, width) of gate and up side by side, each row times its score (S,)."""
    functions: Any = torch._C._nn
    gate, up = reads[0].chunk(2, 1)
    functions.silu(gate, out=writes[0]).mul_(up).mul_(reads[1].to(writes[0].dtype)[:, None])


def weighted_swiglu_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradients of gate and up, side by side, and of the rows' scores, given that of the output,
    gate and up, and the scores."""
    for part in wide_rows(reads[0], at):
        _weighted_swiglu_grad([t[part] for t in reads], [t[part] for t in writes])


def _weighted_swiglu_grad(reads: Tensors, writes: Tensors) -> None:
    functions: Any = torch._C._nn
    ops: Any = torch.ops.aten
    grad, (gate, up), scores = reads[0], reads[1].chunk(2, 1), reads[2].to(reads[0].dtype)[:, None]
    d_gate, d_up = writes[0].chunk(2, 1)
    functions.silu(gate, out=d_up)
    writes[1].copy_((d_up * up * grad).sum(1, dtype=writes[1].dtype))
    weighted = grad * scores
    torch.mul(weighted, up, out=d_gate)
    ops.silu_backward.grad_input(d_gate, gate, grad_input=d_gate)
    d_up.mul_(weighted)


def weighted_gelu(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """GELU by the tanh approximation, (S, width), each row times its score (S,)."""
    functions: Any = torch._C._nn
    functions.gelu(reads[0], approximate="tanh", out=writes[0])
    writes[0].mul_(reads[1].to(writes[0].dtype)[:, None])


def weighted_gelu_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradients of GELU's input and of the rows' scores, given that of the output, the input and
    the scores."""
    functions: Any = torch._C._nn
    ops: Any = torch.ops.aten
    for part in wide_rows(reads[0], at):
        grad, inner, weights = (t[part] for t in reads)
        d_inner, scores = writes[0][part], weights.to(grad.dtype)[:, None]
        functions.gelu(inner, approximate="tanh", out=d_inner)
        writes[1][part].copy_((d_inner * grad).sum(1, dtype=writes[1].dtype))
        ops.gelu_backward.grad_input(grad * scores, inner, approximate="tanh", grad_input=d_inner)
