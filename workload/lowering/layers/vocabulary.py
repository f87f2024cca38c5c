"""The two ends of the model: embedding, classifier and loss, all vocabulary-parallel over x and y.

The table's rows (the vocabulary) are split over x*y and each part is flattened and sharded like any
weight. Logits are never gathered: the loss needs two all-reduces of one and two numbers per token.
Source: Megatron-AxoNN (vocabulary over the whole tensor group).
"""

from __future__ import annotations

from typing import Any

from topologies.records import record
from workload.layout import Layout
from workload.lowering.builder import Builder
from workload.lowering.layers import cross_entropy, dropout, goldfish, norm
from workload.lowering.layers import sequence_parallel as rows
from workload.lowering.layers.linear import add_gradient, gather, matmul, weight_gradient
from workload.op import EMBED, HEAD, INPUT_GRAD, INPUT_GRAD_REDUCE, SOURCE_GATHER, Part

Kept = tuple[tuple[str, str] | None, str]
BEHIND = "targets.behind"


def padded_vocabulary(b: Builder) -> int:
    """The smallest vocabulary of at least V rows that x, y and the shards split evenly."""
    parts = b.grid.parts_of("vocabulary")
    count = -(-b.gpt.vocab // parts)
    while count * b.gpt.hidden % b.grid.size(*b.sharding.optimizer):
        count += 1
    return parts * count


def declare_embedding(b: Builder) -> None:
    """Declare what stands before the layers, each part where the model has it."""
    gpt = b.gpt
    _declare_table(b, "embed.w", EMBED)
    if gpt.positions == "learned":
        shape = (gpt.sequence, gpt.hidden)
        b.parameter(
            "position.w",
            EMBED,
            Layout(shape, shape, ((), b.shards_of("width"))),
            sharded=False,
        )
    if gpt.embedding_norm:
        norm.declare(b, "embed.norm", EMBED)


def declare_head(b: Builder) -> None:
    """Declare what stands behind the layers; a tied table only where the embedding is not."""
    norm.declare(b, "norm", HEAD)
    if _table(b) not in b.parameters:
        _declare_table(b, _table(b), HEAD)


def _declare_table(b: Builder, name: str, owner: Part) -> None:
    shape, padded = (b.gpt.vocab, b.gpt.hidden), (padded_vocabulary(b), b.gpt.hidden)
    layout = Layout(shape, padded, (b.shards_of("vocabulary"), ()))
    on_both_ends = name == "embed.w" and head_has_embedding(b) and b.head_stage > 0
    stages = b.grid.size("ends") if on_both_ends else 1
    b.parameter(name, owner, layout, sharded=True, stages=stages)


def declare_shared_embedding(b: Builder) -> None:
    """Declare the embedding's table where a stage that looks tokens up once more has none."""
    if "embed.w" not in b.parameters:
        _declare_table(b, "embed.w", HEAD)


def head_has_embedding(b: Builder) -> bool:
    """Whether the stage of the classifier works with the embedding's table too."""
    return b.gpt.tied or b.gpt.mtp.layers > 0


def _table(b: Builder) -> str:
    """The classifier's table."""
    return "embed.w" if b.gpt.tied else "head.w"


def inputs(b: Builder, name: str) -> None:
    """Declare a micro-batch's tokens or targets, which are there when the step begins."""
    b.inputs(name, (b.rows,), b.grid.parts_of("vocabulary"))


def embed(b: Builder) -> tuple[str, Kept]:
    """Emit the lookup, its all-reduce, learned positions and a norm, where the model has them.

    Returns the residual stream's name, and what norm and dropout keep for the backward pass.
    """
    h = b.gpt.hidden
    weight = gather(b, "embed", "embed.w", tile(b))
    full = b.tensor("embed.o", (b.rows, h))
    traffic = 2 * b.rows * h * b.item_bytes()
    reads = [b.input_name("tokens"), weight]
    b.op("embed.lookup", "embedding", reads, [full], nbytes=traffic)
    full = rows.reduce(b, "embed.reduce", full, *b.shards_of("vocabulary"))
    if b.gpt.positions == "learned":
        out = b.tensor("position.o", (b.buffers[full].shape[0], h // b.grid.y))
        how: dict[str, Any] = {"sequence": b.gpt.sequence, "row_parts": rows.parts(b)}
        b.op("position", "position", [full, "position.w"], [out], **how)
    else:
        out = take_columns(b, "embed.columns", full, "embed.part")
    kept = None
    if b.gpt.embedding_norm:
        source = out
        out, stats = norm.forward(b, "embed.norm", "embed.norm", source)
        kept = (source, stats)
    return out, (kept, dropout.forward(b, "embed", "embed", out))


def embed_backward(b: Builder, grad: str, kept: Kept) -> None:
    """Emit the gradients of all that `embed` used, from that of the residual stream."""
    (normed, mask), m = kept, b.block.micro_batch
    dropout.backward(b, "embed", mask, grad, grad)
    if normed is not None:
        norm.backward(b, "embed.norm", "embed.norm", normed, grad)
    if b.gpt.positions == "learned":
        reads, writes = b.grad_writes("position.w", m)
        how: dict[str, Any] = {
            "first": m == 0,
            "sequence": b.gpt.sequence,
            "row_parts": rows.parts(b),
        }
        b.op("position.grad", "position_grad", [grad, *reads], writes, **how)
    grad = rows.gather(b, "embed.grad.rows", grad)
    whole = merge_columns(b, "embed.grad", grad)
    dw = b.tensor("embed.dw", tile(b), role="workspace")
    traffic = b.buffers[dw].nbytes + 2 * b.rows * b.gpt.hidden * b.item_bytes()
    reads = [b.name("tokens"), whole]
    after_head = head_has_embedding(b) and b.head_stage == 0
    b.op("embed.grad.weight", "embedding_grad", reads, [dw], nbytes=traffic)
    add_gradient(b, "embed", "embed.w", dw, first=m == 0 and not after_head)


@record
class Head:
    """Names of what the head's forward leaves behind for its backward: gradients of the logits or,
    of a loss in chunks, the classifier's gradients, of its input in `d_input`."""

    source: str
    stats: str
    rows: str
    weight: str
    d_logits: str
    norm_of: str = "norm"
    further: int = 0
    targets: str = ""
    d_input: str = ""


def head(b: Builder, source: str, *, norm_of: str = "norm", further: int = 0) -> Head:
    """Emit last norm, classifier and loss, with the gradient of its logits; it is that of the token
    so many `further` than the next."""
    normed, stats = norm.forward(b, "norm", norm_of, source)
    whole = merge_columns(b, "head", rows.gather(b, "head.rows", normed))
    weight = gather(b, "head", _table(b), tile(b))
    targets, mask = _targets(b, further)
    if cross_entropy.is_in_chunks(b):
        of = cross_entropy.Classifier(whole, _table(b), weight, tile(b))
        d_input = cross_entropy.in_chunks(b, of, (targets, mask))
        return Head(source, stats, "", "", "", norm_of, d_input=d_input)
    vocab = tile(b)[0]
    logits = b.tensor("head.o", (b.rows, vocab))
    matmul(b, "head.matmul", [whole, weight], logits, "NT", (b.rows, vocab, b.gpt.hidden))
    kept = normed if rows.parts(b) > 1 else whole
    d_logits = cross_entropy.loss(b, logits, (targets, mask), further)
    return Head(source, stats, kept, weight, d_logits, norm_of, further, targets)


def head_backward(b: Builder, kept: Head, *, gathered: bool) -> str:
    """Emit the classifier's gradients and the last norm's; returns the stream's gradient.

    `gathered` says that the table's tile is still at hand.
    """
    reduced = INPUT_GRAD_REDUCE
    over = b.shards_of("vocabulary")
    if kept.d_input:
        d = rows.reduce(b, "head.grad.reduce", kept.d_input, *over, purpose=reduced)
    else:
        source = rows.gather(b, "head.grad.source", kept.rows, SOURCE_GATHER)
        d = _input_gradient(b, kept, gathered=gathered)
        d = rows.reduce(b, "head.grad.reduce", d, *over, purpose=reduced)
        first = b.block.micro_batch == 0 and not kept.further
        weight_gradient(b, "head", _table(b), (kept.d_logits, source), tile(b), first=first)
    d = take_columns(b, "head.grad.columns", d, "head.di.part")
    norm.backward(b, "norm", kept.norm_of, (kept.source, kept.stats), d)
    return d


def _input_gradient(b: Builder, kept: Head, *, gathered: bool) -> str:
    """Emit the gradient of the classifier's input, from that of the logits; returns its name."""
    vocab = tile(b)[0]
    weight = kept.weight if gathered else gather(b, "head.grad", _table(b), tile(b))
    d = b.tensor("head.di", (b.rows, b.gpt.hidden))
    shape = (b.rows, b.gpt.hidden, vocab)
    matmul(b, "head.grad.input", [kept.d_logits, weight], d, "NN", shape, INPUT_GRAD)
    return d


def _targets(b: Builder, further: int) -> tuple[str, list[str]]:
    """The next tokens, or emit those so many further; and the mask of those that count, if any."""
    targets = b.input_name("targets")
    if not further:
        return targets, goldfish.mask(b, targets)
    after = b.tensor("mtp.targets", (b.rows,), "int64", role="workspace")
    kept = b.tensor("mtp.kept", (b.rows,), "uint8", role="workspace")
    how: dict[str, Any] = {"sequence": b.gpt.sequence, "ahead": further}
    b.op("mtp.targets", "next_targets", [targets, *_behind(b)], [after, kept], **how)
    return after, [kept]


def _behind(b: Builder) -> list[str]:
    """Declare the targets behind each chunk that a rank has of a sequence, if it is split: as many
    as the furthest token needs.

    Not modelled: Megatron-Core sends them from rank to rank (roll_tensor).
    """
    if b.plan.cp == 1:
        return []
    shape = (b.plan.mbs, goldfish.CHUNKS, b.gpt.mtp.layers)
    return [b.inputs(BEHIND, shape, b.grid.parts_of("vocabulary"))]


def merge_columns(b: Builder, label: str, part: str) -> str:
    """Emit the all-gather over y that makes whole rows of a stream whose columns are split."""
    if b.grid.y == 1:
        return part
    height, width = b.buffers[part].shape
    stacked = b.tensor(f"{label}.stacked", (b.grid.y, height, width))
    b.collective(f"{label}.columns.gather", "all_gather", [part], [stacked], *b.shards_of("width"))
    whole = b.tensor(f"{label}.columns.o", (height, b.grid.y * width))
    b.op(f"{label}.columns", "merge_columns", [stacked], [whole])
    return whole


def take_columns(b: Builder, label: str, whole: str, part: str) -> str:
    """Emit the copy of this rank's columns of whole rows; with one rank on y they are the part."""
    if b.grid.y == 1:
        return whole
    height, width = b.buffers[whole].shape
    own = b.tensor(part, (height, width // b.grid.y))
    b.op(label, "take_columns", [whole], [own])
    return own


def tile(b: Builder) -> tuple[int, int]:
    """The shape of a rank's part of a table."""
    return padded_vocabulary(b) // b.grid.parts_of("vocabulary"), b.gpt.hidden
