"""Rows on their way to places of experts and back, by products with dense masks.

Letters: T tokens of a rank, k experts for each, P places of all experts, of which its tokens fill
T k at most; h columns of a row. A mask of T x P has a one where a token has a place, weights of the
same size have its score there. Rows for the experts are the mask's transpose times the tokens,
zeros where a place is empty; what returns is multiplied by the weights. Either product has
2 T P h FLOPs, which are none of the model's, and so have the three of the backward pass.

P grows with T, so that masks grow with T squared. In PyTorch a one-hot is of int64 first; it is
kept in fp32 for the gradient of scores, mask and weights in the dtype of training for those of
rows: 8 bytes for each of T x P in bf16. What returned is kept too, for the gradient of weights.
Source: Lepikhin et al. (2006.16668), algorithm 2; deepspeedai/DeepSpeed@0c691a5,
deepspeed/moe/sharded_moe.py, topkgating and MOELayer.forward.
Not modelled: the logits' own fp32 copy of the tokens, at least 4 places for an expert, scores
divided by the sum of those that found a place, a drop by scores, and the drop of tokens that
several ranks of x have alike before they are sent (TED, 2303.06318, section 5).
"""

from __future__ import annotations

from topologies.records import record
from workload.lowering.builder import Builder
from workload.lowering.layers import linear
from workload.lowering.layers.mixers.experts.dispatch import Routed, slots
from workload.lowering.layers.mixers.experts.dispatch import width as columns
from workload.op import BY_MASKS


@record
class Masks:
    """Names of what the forward pass leaves behind: the ones in wide numbers, mask and weights in
    the dtype of training, and the rows that returned."""

    ones: str
    mask: str
    weights: str
    returned: str = ""


def sent(b: Builder, source: str, scores: str, routed: Routed) -> tuple[str, Masks]:
    """Emit the masks and the rows for all places; returns these and what is saved."""
    (tokens, width), places = b.buffers[source].shape, slots(b, source)
    shape, topk = (tokens, places), b.gpt.moe.topk
    found = b.tensor("dispatch.one_hot", shape, "int64", "workspace")
    b.op("dispatch.one_hot", "one_hot_places", [routed.order], [found], topk=topk)
    ones = _cast(b, "dispatch.ones", found, b.wide)
    weights = b.tensor("combine.weights.wide", shape, b.wide)
    reads = [ones, scores, routed.order]
    b.op("combine.weights", "weigh_places", reads, [weights], topk=topk)
    filled = b.tensor("dispatch.filled", shape, "uint8", "workspace")
    b.op("dispatch.filled", "is_nonzero", [weights], [filled])
    mask = _cast(b, "dispatch.mask", filled, b.dtype)
    weights = _cast(b, "combine.weights.cast", weights, b.dtype)
    rows = b.tensor("dispatch.rows", (places, width))
    _multiply(b, "dispatch.matmul", [mask, source], rows, "TN", tokens, copies=_copies(b))
    return rows, Masks(ones, mask, weights)


def combined(b: Builder, masks: Masks) -> str:
    """Emit the weighted sum of what returned, for each token."""
    total = _rows_of_tokens(b, "combine.sum", masks)
    _multiply(b, "combine.matmul", [masks.weights, masks.returned], total, "NN", _places(b, masks))
    return total


def combined_grad(b: Builder, masks: Masks, grad: str, routed: Routed) -> tuple[str, str]:
    """Emit the gradients of the rows that returned and of all scores, where x splits an expert's
    width each rank's own part of the latter."""
    (tokens, width), places = b.buffers[grad].shape, _places(b, masks)
    rows = b.tensor("combine.grad.returned", (places, width))
    reads = [masks.weights, grad]
    _multiply(b, "combine.grad.matmul", reads, rows, "TN", tokens, copies=_copies(b))
    d = b.tensor("combine.weights.grad", (tokens, places))
    _multiply(b, "combine.grad.weights", [grad, masks.returned], d, "NT", width)
    d = _cast(b, "combine.weights.grad.cast", d, b.wide)
    scores = b.tensor("dispatch.scores.grad", (tokens, b.gpt.moe.topk), b.wide)
    reads = [d, masks.ones, routed.order]
    b.op("combine.scores.grad", "scores_of_places", reads, [scores], topk=b.gpt.moe.topk)
    b.all_reduce("combine.scores.grad.reduce", scores, *b.shards_of("width"))
    return rows, scores


def sent_grad(b: Builder, masks: Masks, grad: str) -> str:
    """Emit the gradient of the tokens from that of the rows at all places."""
    total = _rows_of_tokens(b, "dispatch.grad.sum", masks)
    _multiply(b, "dispatch.grad.matmul", [masks.mask, grad], total, "NN", _places(b, masks))
    return total


def _rows_of_tokens(b: Builder, label: str, masks: Masks) -> str:
    tokens = b.buffers[masks.mask].shape[0]
    return b.tensor(label, (tokens, columns(b)))


def _places(b: Builder, masks: Masks) -> int:
    return b.buffers[masks.mask].shape[1]


def _cast(b: Builder, label: str, source: str, dtype: str) -> str:
    """Emit a copy in another dtype, if it is another."""
    own = b.buffers[source]
    if own.dtype == dtype:
        return source
    out = b.tensor(f"{label}.o", own.shape, dtype)
    b.op(label, "cast", [source], [out])
    return out


def _multiply(
    b: Builder, label: str, reads: list[str], write: str, form: str, k: int, *, copies: int = 1
) -> None:
    """Emit a product with a mask, which sums over `k`."""
    m, n = b.buffers[write].shape
    linear.matmul(b, label, reads, write, form, (m, n, k), BY_MASKS, copies)


def _copies(b: Builder) -> int:
    """How many ranks multiply the same tokens by the same mask."""
    return b.grid.size(*b.expert_tensor_axes)
