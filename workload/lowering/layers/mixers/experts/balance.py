"""What keeps experts evenly used: a loss beside that of the tokens, and biases of selection.

Letters: E experts, k chosen for a token, n tokens of a run (a sequence, or a micro-batch of one
replica), c_e how many of them chose expert e, p_e the sum of its share of their scores. A layer's
loss of a run is a E / (k n^2) sum_e c_e p_e with the model's coefficient a: a if all are even. The
step's loss has the mean over its tokens, summed over layers. Counts are of choices, whatever a
capacity drops, and have no gradient. Where x or context split a run, counts and sums are reduced.
Source: Fedus et al. (2101.03961), eq. 4 to 6; DeepSeek-V3 (2412.19437), eq. 17 to 20, of a
sequence; Megatron-Core, transformer/moe/moe_utils.py, switch_load_balancing_loss_func.

The biases are added to scores for selection alone, and after each step move by a rate towards
experts that were chosen less often than the mean of all ranks' tokens.
Source: Wang et al. (2408.15664), algorithm 1; DeepSeek-V3, section 2.1.2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from workload.grid import OPPOSITE
from workload.layout import ZEROS, Layout
from workload.lowering.builder import Builder
from workload.lowering.layers import sequence_parallel as rows
from workload.model.experts import SEQUENCE
from workload.models import moe, mtp
from workload.op import NONE, Buffer, Part, layer_part
from workload.stages import places_of

TOTAL = "balance"


def declare(b: Builder, owner: Part) -> None:
    """Declare a layer's biases of selection and the counts of a step, if the model has them."""
    if not b.gpt.moe.router_bias:
        return
    name, shape = bias_of(owner), (b.gpt.moe.experts,)
    b.layouts[name] = Layout(shape, shape, ((),), starts=ZEROS)
    copies = b.grid.ranks // b.grid.pp * b.copies
    held = Buffer(name, shape, b.wide, "parameters", True, copies, name, owner)
    b.add(held)
    b.add(replace(held, name=_counts(owner), role="workspace", parameter=""))


def declare_total(b: Builder) -> None:
    """Declare what the losses of the stage's layers are summed in."""
    if b.gpt.moe.balance_loss and _own_layers(b):
        b.add(Buffer(TOTAL, (1,), b.wide, "workspace", True, b.grid.ranks))


def bias_of(owner: Part) -> str:
    """The name of a layer's biases of selection."""
    return f"{owner}.router.correction"


def forward(b: Builder, owner: Part, logits: str, chosen: str) -> str:
    """Emit the counts, and the layer's loss; returns the name of what its gradient needs. What runs
    again neither counts nor adds to the loss."""
    own, again = b.gpt, b.block.is_recomputed
    if own.moe.router_bias and not again:
        name, first = _counts(owner), b.block.micro_batch == 0 and b.block.part == owner
        b.op("router.count", "count_choices", [chosen, *_old(name, first)], [name], first=first)
    if not own.moe.balance_loss:
        return ""
    sums = b.tensor("balance.sums", (2, _runs(b), own.moe.experts), b.wide)
    b.op("balance.sums", "balance_sums", [logits, chosen], [sums], **_how(b))
    over_x = b.shards_of("rows") if rows.parts(b) > 1 else ()
    b.all_reduce("balance.sums.reduce", sums, *over_x, *b.shards_of("positions"))
    if not again:
        first = b.block.micro_batch == 0 and b.block.part.layer == first_layer(b)
        reads = [sums, *_old(TOTAL, first)]
        b.op("balance.loss", "balance_loss", reads, [TOTAL], first=first, **_how(b))
    return sums


def backward(b: Builder, sums: str, logits: str, grad: str) -> None:
    """Emit the addition of the loss' gradient to that of the logits."""
    if sums:
        b.op("balance.grad", "balance_grad", [sums, logits, grad], [grad], **_how(b))


def first_layer(b: Builder) -> int:
    """The layer of the stage whose loss is the first of a micro-batch; NONE if none has one."""
    return next(iter(_own_layers(b)), NONE) if b.gpt.moe.balance_loss else NONE


def add_loss(b: Builder, total: str) -> None:
    """Emit the addition of the balancing losses to a stage's part of the step's loss."""
    if TOTAL in b.buffers:
        b.op("loss.balance", "add", [total, TOTAL], [total])


def move_biases(b: Builder) -> None:
    """Emit the sums of counts over all ranks' tokens, and the biases' move."""
    owners = [layer_part(layer) for layer in _own_layers(b)] if b.gpt.moe.router_bias else []
    if not owners:
        return
    counts = [_counts(owner) for owner in owners]
    axes = *(b.shards_of("rows") if rows.parts(b) > 1 else ()), *b.shards_of("tokens")
    if b.grid.size(*axes) > 1:
        b.collective("router.counts.reduce", "all_reduce", counts, counts, *axes)
    if b.copies > 1:
        b.collective("router.counts.copies.reduce", "all_reduce", counts, counts, OPPOSITE)
    for owner, name in zip(owners, counts, strict=True):
        bias = bias_of(owner)
        how: dict[str, Any] = {"rate": b.gpt.moe.router_bias_rate, "part": owner}
        b.op("router.bias.move", "balance_bias", [name, bias], [bias], **how)


def _own_layers(b: Builder) -> list[int]:
    """The stage's layers with experts."""
    parts = places_of(b.plan).parts(b.stage)
    layers = [layer for part in parts for layer in b.few.parts[part]]
    if b.has_head:
        layers += [n for depth in range(mtp.depths_held(b.gpt)) for n in mtp.numbers(b.gpt, depth)]
    return [layer for layer in layers if moe.has_experts(b.gpt, layer)]


def _counts(owner: Part) -> str:
    return f"{owner}.router.counts"


def _old(name: str, first: bool) -> list[str]:
    return [] if first else [name]


def _runs(b: Builder) -> int:
    """How many runs of tokens a micro-batch of a rank has."""
    return b.plan.mbs if b.gpt.moe.balance_over == SEQUENCE else 1


def _how(b: Builder) -> dict[str, Any]:
    """The numbers of a loss; on each of `parts` ranks that share runs stands one part of it."""
    gpt, rank = b.gpt, b.plan.mbs * b.gpt.sequence
    return {
        "router": gpt.moe.router,
        "runs": _runs(b),
        "rows": b.rows,
        "coefficient": gpt.moe.balance_loss,
        "topk": gpt.moe.topk,
        "run": rank // _runs(b),
        "tokens": b.plan.batch * gpt.sequence,
        "parts": b.grid.parts_of("positions"),
    }
