"""The attention core of a rank's part of each sequence, on the keys and values at hand.

The queries of a rank are two chunks of a sequence (`positions.py`), the keys at hand all of it or
the two chunks of another rank. What a query sees of them are pieces: chunks whole, and its own
under the causal mask. The contexts of pieces are weighted by their sums of exponentials.
Source: Liu et al. (Ring Attention, 2310.01889), section 3; Dao (FlashAttention-2), section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from executor.kernels.attentions.flash import flash, flash_grad, has_flash
from executor.kernels.attentions.heads import (
    add_to_heads,
    own_heads,
    queries_of,
    repeated,
    summed,
    value_width,
)
from executor.kernels.context import piece_steps
from executor.kernels.context.piece_steps import Piece
from executor.kernels.context.positions import chunk_pair
from executor.kernels.slices import HeadSlice, head_slices, row_slices, wide_dtype
from executor.launching.device_use import CUDNN
from executor.rank_context import RankContext
from topologies.records import record
from workload.models.documents import document_at
from workload.op import Op

Tensors = Sequence[torch.Tensor]


@record
class Keys:
    """Keys and values at hand, (ranks, sequences, 2 chunks, tokens, columns of both), of so many
    heads; `widths` are those of a head's keys and values."""

    tensor: torch.Tensor
    heads: int
    widths: tuple[int, int]

    def of(self, part: HeadSlice, values: bool) -> torch.Tensor:
        """Keys or values of some heads, (sequences, heads, tokens, width), by position."""
        own = self._own(part, values)
        every = torch.cat([own[:, :, 0], own[:, :, 1].flip(0)])
        return every.permute(1, 3, 0, 2, 4).flatten(2, 3)

    def put(self, part: HeadSlice, values: bool, found: torch.Tensor) -> None:
        """Write what `of` reads."""
        own = self._own(part, values)
        ranks, _, _, tokens = own.shape[:4]
        split = found.reshape(*found.shape[:2], 2 * ranks, tokens, found.shape[-1])
        every = split.permute(2, 0, 3, 1, 4)
        own[:, :, 0].copy_(every[:ranks])
        own[:, :, 1].copy_(every[ranks:].flip(0))

    def _own(self, part: HeadSlice, values: bool) -> torch.Tensor:
        columns = [self.heads * width for width in self.widths]
        band = self.tensor.split_with_sizes(columns, -1)[values]
        heads = band.view(*band.shape[:-1], self.heads, self.widths[values])
        return heads[:, part.sequences, :, :, part.kv_heads]


def forward(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Write context and log-sum-exp of a rank's queries over the keys at hand: zeros and minus
    infinity for those that see none of them."""
    qkv, held, *sinks = reads
    context, logsumexp = writes
    tokens = logsumexp.shape[-1]
    queries, keys = queries_of(op, qkv, tokens), _keys(op, held, tokens)
    out = _by_head(op, context, tokens)
    for part in _slices(op, queries, keys, at):
        q = part.queries(queries)
        k, v = (repeated(keys.of(part, values), q.shape[1]) for values in (False, True))
        whole = q.new_zeros((*q.shape[:-1], v.shape[-1]), dtype=wide_dtype(q))
        sums = whole.new_full(q.shape[:-1], -torch.inf)
        for piece in pieces(op, tokens, at, part):
            found = _attend(op, piece, (q, k, v), at)
            merge(whole[:, :, piece.queries], sums[:, :, piece.queries], *found)
        for logits in sinks:
            _add_sinks(whole, sums, own_heads(op, logits, at)[part.heads])
        part.queries(out).copy_(whole)
        part.queries(logsumexp).copy_(sums)


def backward(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Write the gradients of queries, which later steps of a ring add to, and those of the keys
    and values at hand."""
    grad, qkv, held, context, logsumexp = reads[:5]
    tokens = logsumexp.shape[-1]
    queries, keys = queries_of(op, qkv, tokens), _keys(op, held, tokens)
    target, written = queries_of(op, writes[0], tokens), _keys(op, writes[1], tokens)
    about = _by_head(op, grad, tokens), _by_head(op, context, tokens), logsumexp
    if len(writes) > 2:
        add_to_heads(op, writes[2], sinks_grad(own_heads(op, reads[5], at), *about), at)
    for part in _slices(op, queries, keys, at):
        q = part.queries(queries)
        k, v = (repeated(keys.of(part, values), q.shape[1]) for values in (False, True))
        d_q, d_k, d_v = (t.new_zeros(t.shape, dtype=wide_dtype(t)) for t in (q, k, v))
        for piece in pieces(op, tokens, at, part):
            own = tuple(part.queries(t)[:, :, piece.queries] for t in about)
            found = _attend_back(op, piece, (q, k, v), own, at)
            d_q[:, :, piece.queries].add_(found[0])
            d_k[:, :, piece.keys].add_(found[1])
            d_v[:, :, piece.keys].add_(found[2])
        if op.attributes.get("step", 0):
            d_q.add_(part.queries(target))
        part.queries(target).copy_(d_q)
        for values, d in ((False, d_k), (True, d_v)):
            written.put(part, values, summed(d, part.kv_heads.stop - part.kv_heads.start))


def sinks_grad(
    sinks: torch.Tensor, grad: torch.Tensor, context: torch.Tensor, logsumexp: torch.Tensor
) -> torch.Tensor:
    """The gradient of sinks: a sink, whose probability multiplies nothing, has the sum of minus its
    probability times that of gradient and context."""
    found = torch.zeros_like(sinks, dtype=wide_dtype(sinks))
    for sequence in range(len(grad)):
        for head in range(len(sinks)):
            products = (grad[sequence, head] * context[sequence, head]).sum(-1)
            found[head] -= ((sinks[head] - logsumexp[sequence, head]).exp() * products).sum()
    return found


def _add_sinks(out: torch.Tensor, sums: torch.Tensor, sinks: torch.Tensor) -> None:
    """Count sinks among the keys of a context, in place; they bring no value."""
    both = torch.logaddexp(sums, sinks.to(sums.dtype)[:, None].expand_as(sums))
    out.mul_((sums - both).exp_()[..., None])
    sums.copy_(both)


def take_keys(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Copy keys and values out of the fused tensor."""
    writes[0].copy_(_band(op, reads[0], writes[0]))


def put_keys(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Copy the gradients of keys and values into the fused one."""
    _band(op, writes[0], reads[0]).copy_(reads[0])


def merge_attention(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Add the context of further keys, in place."""
    context, logsumexp, more, more_sums = reads
    tokens = logsumexp.shape[-1]
    out, added = (_by_head(op, t, tokens) for t in (context, more))
    for sequence in range(len(out)):
        for heads in row_slices(out.shape[1], 16 * tokens * value_width(op), at):
            own = out[sequence, heads].to(wide_dtype(out))
            merge(
                own, logsumexp[sequence, heads], added[sequence, heads], more_sums[sequence, heads]
            )
            out[sequence, heads].copy_(own)


def merge(
    out: torch.Tensor, sums: torch.Tensor, more: torch.Tensor, more_sums: torch.Tensor
) -> None:
    """Weight a context and that of further keys by their log-sum-exps, in place."""
    both = torch.logaddexp(sums, more_sums.to(sums.dtype))
    over = both.masked_fill(both == -torch.inf, 0)
    out.mul_((sums - over).exp_()[..., None])
    out.add_(more * (more_sums - over).exp_()[..., None])
    sums.copy_(both)


def pieces(op: Op, tokens: int, at: RankContext, part: HeadSlice) -> Iterator[Piece]:
    """What a rank's queries see of the keys at hand: at a ring's step those of the rank so many
    places before it."""
    over = op.attributes.get("over", at.grid.shards_of("positions"))
    parts, index, half = at.grid.size(*over), at.part(over), tokens // 2
    sequence = parts * tokens
    own = _positions(chunk_pair(sequence, parts, index), at)
    first, both, last = slice(0, half), slice(0, tokens), slice(half, tokens)
    if op.attributes["context"] == "all_gather":
        every = torch.arange(sequence, device=at.device)
        for queries, chunk in ((first, index), (last, 2 * parts - 1 - index)):
            before, mine = slice(0, chunk * half), slice(chunk * half, (chunk + 1) * half)
            if op.attributes.keys() & {"window", "document", "documents"}:
                seen = slice(first_seen(op, mine.start), mine.stop)
                yield Piece(part, queries, seen, True, own[queries], every[seen], sequence)
                continue
            if chunk:
                yield Piece(part, queries, before, False, own[queries], every[before], sequence)
            yield Piece(part, queries, mine, True, own[queries], every[mine], sequence)
        return
    owner = (index - op.attributes["step"]) % parts
    theirs = _positions(chunk_pair(sequence, parts, owner), at)
    if owner == index:
        yield Piece(part, both, both, True, own, theirs, sequence)
    elif owner < index:
        yield Piece(part, both, first, False, own, theirs[first], sequence)
    else:
        yield Piece(part, last, both, False, own[last], theirs, sequence)


def first_seen(op: Op, query: int) -> int:
    """The first key that a query sees, by its window and its document."""
    window = int(op.attributes.get("window", query + 1))
    start = query - query % int(op.attributes.get("document", query + 1))
    if packing := op.attributes.get("documents"):
        start = document_at(packing, query).start
    return max(query - window + 1, start, 0)


def _positions(parts: Sequence[slice], at: RankContext) -> torch.Tensor:
    return torch.cat([torch.arange(p.start, p.stop, device=at.device) for p in parts])


def _attend(
    op: Op, piece: Piece, qkv: Tensors, at: RankContext
) -> tuple[torch.Tensor, torch.Tensor]:
    own = piece.of(qkv)
    if has_flash(op, qkv[0], at):
        return flash(*own, causal=piece.causal, cudnn=at.attention == CUDNN)
    return piece_steps.forward(op, piece, own, at)


def _attend_back(op: Op, piece: Piece, qkv: Tensors, about: Tensors, at: RankContext) -> Tensors:
    own = piece.of(qkv)
    if has_flash(op, qkv[0], at):
        grad, out, lse = about
        cudnn = at.attention == CUDNN
        return flash_grad(grad, own, out, lse, causal=piece.causal, cudnn=cudnn)
    return piece_steps.backward(op, piece, own, about, at)


def _keys(op: Op, held: torch.Tensor, tokens: int) -> Keys:
    """Keys and values of one rank after the other."""
    rows = op.attributes["sequences"] * tokens
    shape = (len(held) // rows, op.attributes["sequences"], 2, tokens // 2, held.shape[-1])
    widths = op.attributes["width"], value_width(op)
    return Keys(held.view(shape), op.attributes["kv_heads"], widths)


def _by_head(op: Op, tensor: torch.Tensor, tokens: int) -> torch.Tensor:
    """A view (sequences, heads, tokens, width) of a context or its gradient."""
    return tensor.view(-1, tokens, op.attributes["heads"], value_width(op)).transpose(1, 2)


def _band(op: Op, qkv: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The columns of keys and values, as wide as `keys` are."""
    return qkv.narrow(1, op.attributes["heads"] * op.attributes["width"], keys.shape[1])


def _slices(op: Op, queries: torch.Tensor, keys: Keys, at: RankContext) -> Iterator[HeadSlice]:
    """Slices of heads whose copies of queries, keys and values stay within the scratch."""
    tokens = keys.tensor.shape[0] * queries.shape[2]
    nbytes = 8 * tokens * max(keys.widths) * wide_dtype(queries).itemsize
    return head_slices(op, len(queries), nbytes, at)
