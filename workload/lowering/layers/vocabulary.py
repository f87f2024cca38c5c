"""The two ends of the model: embedding, classifier and loss, all vocabulary-parallel over x and y.

The table's rows (the vocabulary) are split over x*y and each part is flattened and sharded like any
weight. Logits are never gathered: the loss needs two all-reduces of one and two numbers per token.
Source: Megatron-AxoNN (vocabulary over the whole tensor group).
"""

from __future__ import annotations

from dataclasses import dataclass

from workload.layout import Layout
from workload.lowering.builder import Builder
from workload.lowering.layers import dropout, norm
from workload.lowering.layers import sequence_parallel as rows
from workload.lowering.layers.linear import add_gradient, gather, matmul, weight_gradient

Kept = tuple[tuple[str, str] | None, str]


def padded_vocabulary(b: Builder) -> int:
    """The smallest vocabulary of at least V rows that x, y and the shards split evenly."""
    parts = b.grid.size("x", "y")
    count = -(-b.gpt.vocab // parts)
    while count * b.gpt.hidden % b.grid.size(*b.sharding.optimizer):
        count += 1
    return parts * count


def declare_embedding(b: Builder) -> None:
    """Declare what stands before the layers, each part where the model has it."""
    gpt = b.gpt
    _declare_table(b, "embed.w", "embed")
    if gpt.positions == "learned":
        shape = (gpt.sequence, gpt.hidden)
        b.parameter("position.w", "embed", Layout(shape, shape, ((), ("y",))), sharded=False)
    if gpt.embedding_norm:
        norm.declare(b, "embed.norm", "embed")


def declare_head(b: Builder) -> None:
    """Declare what stands behind the layers; a tied table only where the embedding is not."""
    norm.declare(b, "norm", "head")
    if _table(b) not in b.parameters:
        _declare_table(b, _table(b), "head")


def _declare_table(b: Builder, name: str, owner: str) -> None:
    shape, padded = (b.gpt.vocab, b.gpt.hidden), (padded_vocabulary(b), b.gpt.hidden)
    layout = Layout(shape, padded, (("x", "y"), ()))
    stages = b.grid.size("ends") if b.gpt.tied else 1
    b.parameter(name, owner, layout, sharded=True, stages=stages)


def _table(b: Builder) -> str:
    """The classifier's table."""
    return "embed.w" if b.gpt.tied else "head.w"


def inputs(b: Builder, m: int, name: str) -> None:
    """Declare a micro-batch's tokens or targets, which are there when the step begins."""
    b.state(f"m{m}.{name}", (b.rows,), "int64", "workspace", b.grid.size("x", "y"))


def embed(b: Builder, m: int) -> tuple[str, Kept]:
    """Emit the lookup, its all-reduce, learned positions and a norm, where the model has them.

    Returns the residual stream's name, and what norm and dropout keep for the backward pass.
    """
    prefix, h = f"m{m}.embed", b.gpt.hidden
    weight = gather(b, prefix, "embed.w", _tile(b))
    full = b.tensor(f"{prefix}.o", (b.rows, h))
    traffic = 2 * b.rows * h * b.item_bytes()
    b.op(f"{prefix}.lookup", "embedding", [f"m{m}.tokens", weight], [full], nbytes=traffic)
    full = rows.reduce(b, f"{prefix}.reduce", full, "x", "y")
    if b.gpt.positions == "learned":
        out = b.tensor(f"m{m}.position.o", (b.buffers[full].shape[0], h // b.grid.y))
        how = {"sequence": b.gpt.sequence, "row_parts": rows.parts(b)}
        b.op(f"m{m}.position", "position", [full, "position.w"], [out], **how)
    else:
        out = _take_columns(b, f"{prefix}.columns", full, f"{prefix}.part")
    kept = None
    if b.gpt.embedding_norm:
        source = out
        out, stats = norm.forward(b, f"{prefix}.", "norm", "embed.norm", source)
        kept = (source, stats)
    return out, (kept, dropout.forward(b, prefix, "embed", out))


def embed_backward(b: Builder, m: int, grad: str, kept: Kept) -> None:
    """Emit the gradients of all that `embed` used, from that of the residual stream."""
    prefix = f"m{m}.embed"
    normed, mask = kept
    dropout.backward(b, prefix, mask, grad, grad)
    if normed is not None:
        norm.backward(b, f"{prefix}.", "norm", "embed.norm", normed, grad, m)
    if b.gpt.positions == "learned":
        reads, writes = b.grad_writes("position.w", m)
        how = {"first": m == 0, "sequence": b.gpt.sequence, "row_parts": rows.parts(b)}
        b.op(f"m{m}.position.grad", "position_grad", [grad, *reads], writes, **how)
    grad = rows.gather(b, f"{prefix}.grad.rows", grad)
    whole = _merge_columns(b, f"{prefix}.grad", grad)
    dw = b.tensor(f"{prefix}.dw", _tile(b), role="workspace")
    traffic = b.buffers[dw].nbytes + 2 * b.rows * b.gpt.hidden * b.item_bytes()
    reads = [f"m{m}.tokens", whole]
    after_head = b.gpt.tied and b.grid.pipe == 1
    b.op(f"{prefix}.grad.weight", "embedding_grad", reads, [dw], nbytes=traffic)
    add_gradient(b, prefix, "embed.w", dw, first=m == 0 and not after_head)


@dataclass(frozen=True, slots=True)
class Head:
    """Names of what the head's forward leaves behind for its backward."""

    source: str
    stats: str
    rows: str
    weight: str
    d_logits: str


def head(b: Builder, m: int, source: str) -> Head:
    """Emit last norm, classifier and loss, with the gradient of its logits."""
    prefix = f"m{m}.head"
    normed, stats = norm.forward(b, f"m{m}.", "norm", "norm", source)
    whole = _merge_columns(b, prefix, rows.gather(b, f"{prefix}.rows", normed))
    weight = gather(b, prefix, _table(b), _tile(b))
    vocab = _tile(b)[0]
    logits = b.tensor(f"{prefix}.o", (b.rows, vocab))
    matmul(b, f"{prefix}.matmul", [whole, weight], logits, "NT", (b.rows, vocab, b.gpt.hidden))
    kept = normed if rows.parts(b) > 1 else whole
    return Head(source, stats, kept, weight, _loss(b, m, logits))


def head_backward(b: Builder, m: int, kept: Head, *, gathered: bool) -> str:
    """Emit the classifier's gradients and the last norm's; returns the stream's gradient.

    `gathered` says that the table's tile is still at hand.
    """
    prefix, vocab = f"m{m}.head", _tile(b)[0]
    source = rows.gather(b, f"{prefix}.grad.source", kept.rows)
    weight = kept.weight if gathered else gather(b, f"{prefix}.grad", _table(b), _tile(b))
    d = b.tensor(f"{prefix}.di", (b.rows, b.gpt.hidden))
    shape = (b.rows, b.gpt.hidden, vocab)
    matmul(b, f"{prefix}.grad.input", [kept.d_logits, weight], d, "NN", shape)
    d = rows.reduce(b, f"{prefix}.grad.reduce", d, "x", "y")
    weight_gradient(b, prefix, _table(b), (kept.d_logits, source), _tile(b), m)
    d = _take_columns(b, f"{prefix}.grad.columns", d, f"{prefix}.di.part")
    norm.backward(b, f"m{m}.", "norm", "norm", (kept.source, kept.stats), d, m)
    return d


def _loss(b: Builder, m: int, logits: str) -> str:
    """Emit cross-entropy over the split vocabulary and its gradient; returns the latter's name.

    Source: Shoeybi et al. (Megatron-LM, 1909.08053), section 3: maximum first, then the sum of
    exponentials and the target's logit, each reduced over the ranks that split the vocabulary.
    """
    prefix, targets = f"m{m}.loss", f"m{m}.targets"
    vocab = {"vocab": b.gpt.vocab}
    if b.dtype == "bf16":
        wide = b.tensor(f"{prefix}.logits", b.buffers[logits].shape, b.wide)
        b.op(f"{prefix}.cast", "cast", [logits], [wide])
        logits = wide
    top = b.tensor(f"{prefix}.max", (b.rows,), b.wide, role="workspace")
    b.op(f"{prefix}.maximum", "loss_maximum", [logits], [top], **vocab)
    b.all_reduce(f"{prefix}.maximum.reduce", top, "x", "y", reduction="max")
    sums = b.tensor(f"{prefix}.sums", (2, b.rows), b.wide, role="workspace")
    reads = [logits, top, targets]
    b.op(f"{prefix}.exponentials", "loss_sums", reads, [sums, logits], **vocab)
    b.all_reduce(f"{prefix}.exponentials.reduce", sums, "x", "y")
    tokens = b.plan.batch * b.gpt.sequence
    total = ["loss"] if m else []
    b.op(f"{prefix}.mean", "loss_mean", [sums, *total], ["loss"], tokens=tokens, first=m == 0)
    grad = b.tensor(f"{prefix}.grad", b.buffers[logits].shape)
    reads = [logits, sums, targets]
    b.op(f"{prefix}.grad", "loss_grad", reads, [grad], tokens=tokens, **vocab)
    return grad


def _merge_columns(b: Builder, prefix: str, part: str) -> str:
    """Emit the all-gather over y that makes whole rows of a stream whose columns are split."""
    if b.grid.y == 1:
        return part
    height, width = b.buffers[part].shape
    stacked = b.tensor(f"{prefix}.stacked", (b.grid.y, height, width))
    b.collective(f"{prefix}.columns.gather", "all_gather", [part], [stacked], "y")
    whole = b.tensor(f"{prefix}.columns.o", (height, b.grid.y * width))
    b.op(f"{prefix}.columns", "merge_columns", [stacked], [whole])
    return whole


def _take_columns(b: Builder, op: str, whole: str, part: str) -> str:
    """Emit the copy of this rank's columns of whole rows; with one rank on y they are the part."""
    if b.grid.y == 1:
        return whole
    height, width = b.buffers[whole].shape
    b.op(op, "take_columns", [whole], [b.tensor(part, (height, width // b.grid.y))])
    return part


def _tile(b: Builder) -> tuple[int, int]:
    return padded_vocabulary(b) // b.grid.size("x", "y"), b.gpt.hidden
