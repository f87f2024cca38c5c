"""Cross-entropy over a vocabulary that x and y split: of all rows of a micro-batch at once, or of
`loss_chunks` chunks of them, one after the other.

A chunk's rows pass the classifier, the loss and both gradients of the classifier before the next
chunk begins, so that logits and their gradients are of one chunk. All of it is in the forward pass:
what is left for the backward pass is the gradient of the classifier's input. Gradients of the
classifier's weight are summed over chunks in the precision of training, and reduced over ranks once
a micro-batch; the weight stays gathered until then. Sources: pytorch/torchtitan@b5bcd76,
torchtitan/components/loss.py, ChunkedLossWrapper (equal chunks, 8 by default);
linkedin/Liger-Kernel@ead96b6, src/liger_kernel/ops/fused_linear_cross_entropy.py.

With `loss=fused` one kernel makes the gradient of logits in place of them, in their precision,
without fp32 copies. It reads them twice and writes them once (Liger-Kernel,
src/liger_kernel/ops/cross_entropy.py), and its chunks are Liger-Kernel's, unless `loss_chunks` says
another number. Not modelled: that FSDP2 sums a weight's gradients of chunks in the dtype in which
it reduces them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from topologies.records import record
from workload.lowering.builder import Builder
from workload.lowering.layers import goldfish
from workload.lowering.layers.linear import add_gradient, matmul
from workload.lowering.updates import zeroth_order
from workload.op import INPUT_GRAD, WEIGHT_GRAD

FUSED = "fused"
PASSES = 3  # of a fused loss over its logits: two that read them, one that writes
Told = tuple[str, list[str]]  # targets, and which of them count


@record
class Classifier:
    """What chunks multiply: the classifier's input, its table, the tile of it and its shape."""

    source: str
    table: str
    weight: str
    tile: tuple[int, int]


def is_in_chunks(b: Builder) -> bool:
    """Whether a chunk's gradients are made before the next chunk's loss."""
    return b.plan.training.loss_chunks > 1 or b.plan.training.loss == FUSED


def chunk_rows(rows: int, vocab: int, hidden: int) -> int:
    """Rows of a chunk of a fused loss: a power of two, so that a chunk's logits are about as large
    as the classifier's whole input. The last chunk may have fewer.

    Source: linkedin/Liger-Kernel@ead96b6, ops/fused_linear_cross_entropy.py (inc_factor,
    chunk_size).

    >>> chunk_rows(32_768, 128_256, 4_096)
    1024
    """
    share = int(-(-rows // -(-vocab // hidden)))
    return min(1 << (share - 1).bit_length(), rows)


def in_chunks(b: Builder, of: Classifier, told: Told) -> str:
    """Emit classifier, loss and gradients chunk by chunk; returns the gradient of the classifier's
    input, to which each rank adds the part of its vocabulary. Zeroth-order rules, which only
    compare losses, have no gradients."""
    trains, total = not b.rule.zeroth_order, ""
    d = b.tensor("head.di", (b.rows, b.gpt.hidden)) if trains else ""
    for number, (start, count) in enumerate(_chunks(b, of)):
        own, parts = _taken(b, of.source, told, start, count, number)
        logits = b.tensor(f"head.o.{number}", (count, of.tile[0]))
        shape = (count, of.tile[0], of.tile[1])
        matmul(b, f"head.matmul.{number}", [own, of.weight], logits, "NT", shape)
        grad = loss(b, logits, parts, 0, chunk=number)
        if trains:
            _put_input_gradient(b, of, grad, d, start, number)
            total = _summed_weight_gradient(b, of, (grad, own), total, number)
    if total:
        add_gradient(b, "head", of.table, total, first=b.block.micro_batch == 0)
    return d


def _chunks(b: Builder, of: Classifier) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each chunk."""
    count = b.plan.training.loss_chunks
    if count > 1:
        each = b.rows // count
        return ((number * each, each) for number in range(count))
    most = chunk_rows(b.rows, *of.tile)
    return ((start, min(most, b.rows - start)) for start in range(0, b.rows, most))


def _taken(
    b: Builder, source: str, told: Told, start: int, count: int, number: int
) -> tuple[str, Told]:
    """Emit the copies of a chunk's rows of the classifier's input, of its targets and of which of
    these count."""
    whole = source, told[0], *told[1]
    parts = []
    for label, name in zip(("head.rows", "loss.targets", "loss.kept"), whole, strict=False):
        every = b.buffers[name]
        shape = (count, *every.shape[1:])
        parts.append(b.tensor(f"{label}.{number}", shape, every.dtype, role="workspace"))
    moved = 2 * sum(map(b.nbytes, parts))
    b.op(f"head.take.{number}", "take_chunk", whole, parts, nbytes=moved, start=(start,))
    return parts[0], (parts[1], parts[2:])


def _put_input_gradient(
    b: Builder, of: Classifier, grad: str, d: str, start: int, number: int
) -> None:
    """Emit the gradient of a chunk of the classifier's input, and its copy to its rows."""
    count, (vocab, hidden) = b.buffers[grad].shape[0], of.tile
    part = b.tensor(f"head.di.{number}", (count, hidden))
    shape = (count, hidden, vocab)
    label = f"head.grad.input.{number}"
    matmul(b, label, [grad, of.weight], part, "NN", shape, INPUT_GRAD)
    reads, moved = [part, d] if number else [part], 2 * b.nbytes(part)
    b.op(f"head.put.{number}", "put_chunk", reads, [d], nbytes=moved, start=(start,))


def _summed_weight_gradient(
    b: Builder, of: Classifier, operands: tuple[str, str], total: str, number: int
) -> str:
    """Emit a chunk's gradient of the weight and its addition to those of the chunks before; returns
    the sum."""
    name = f"head.dw.{number}"
    full = b.tensor(name, b.whole_tile(of.table, *of.tile), role="workspace")
    shape = (*of.tile, b.buffers[operands[0]].shape[0])
    label = f"head.grad.weight.{number}"
    matmul(b, label, list(operands), full, "TN", shape, WEIGHT_GRAD)
    if total:
        b.op(f"head.grad.add.{number}", "add", [total, full], [total])
    return total or full


def loss(b: Builder, logits: str, told: Told, further: int, chunk: int | None = None) -> str:
    """Emit cross-entropy over the split vocabulary and its gradient, of all rows or of a `chunk`;
    returns the gradient's name. `told` are the targets and which of them count. The loss of a
    `further` token (multi-token prediction) is weighted and added to that of the next token.

    Source: Shoeybi et al. (Megatron-LM, 1909.08053), section 3: maximum first, then the sum of
    exponentials and the target's logit, each reduced over the ranks that split the vocabulary.
    """
    (targets, kept), end = told, "" if chunk is None else f".{chunk}"
    if b.plan.training.loss == FUSED:
        return _fused(b, logits, told, chunk or 0)
    weight = b.gpt.mtp.loss / b.gpt.mtp.layers if further else 1.0
    how: dict[str, Any] = {"masked": True, "weight": weight} if further else {}
    vocab: dict[str, Any] = {"vocab": b.gpt.vocab}
    count = b.buffers[logits].shape[0]
    if b.dtype == "bf16":
        wide = b.tensor(f"loss.logits{end}", b.buffers[logits].shape, b.wide)
        b.op(f"loss.cast{end}", "cast", [logits], [wide])
        logits = wide
    top = b.tensor(f"loss.max{end}", (count,), b.wide, role="workspace")
    b.op(f"loss.maximum{end}", "loss_maximum", [logits], [top], **vocab)
    over = b.shards_of("vocabulary")
    b.all_reduce(f"loss.maximum.reduce{end}", top, *over, reduction="max")
    sums = b.tensor(f"loss.sums{end}", (2, count), b.wide, role="workspace")
    reads = [logits, top, targets]
    b.op(f"loss.exponentials{end}", "loss_sums", reads, [sums, logits], **vocab)
    b.all_reduce(f"loss.exponentials.reduce{end}", sums, *over)
    tokens, (total, first) = b.plan.batch * b.gpt.sequence, _total(b)
    first = first and not further and not chunk
    reads = [sums, *kept, *([] if first else [total])]
    b.op(f"loss.mean{end}", "loss_mean", reads, [total], tokens=tokens, first=first, **how)
    grad = b.tensor(f"loss.grad{end}", b.buffers[logits].shape)
    reads = [logits, sums, targets, *kept]
    b.op(f"loss.grad{end}", "loss_grad", reads, [grad], tokens=tokens, **vocab, **how)
    return grad


def _fused(b: Builder, logits: str, told: Told, chunk: int) -> str:
    """Emit the kernel that makes a chunk's loss, and the gradient of its logits in place of these;
    returns that."""
    tokens, (total, first) = b.plan.batch * b.gpt.sequence, _total(b)
    first = first and not chunk
    reads = [logits, told[0], *told[1], *([] if first else [total])]
    how: dict[str, Any] = {"tokens": tokens, "vocab": b.gpt.vocab, "first": first}
    moved = PASSES * b.nbytes(logits) + sum(map(b.nbytes, (told[0], *told[1])))
    b.op(f"loss.fused.{chunk}", "fused_loss", reads, [logits, total], nbytes=moved, **how)
    return logits


def _total(b: Builder) -> tuple[str, bool]:
    """What a micro-batch's loss is added to, and whether it is the first one."""
    m = b.block.micro_batch
    if b.rule.zeroth_order:
        return zeroth_order.loss_of(b, m), m in (0, b.plan.micro_batches)
    return goldfish.total(b), m == 0
