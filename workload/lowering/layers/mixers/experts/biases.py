"""Biases of experts' linears: one for each expert, cut and summed as its weights are.

Letters: E experts, n an output's width. The first linear's is added before the activation. The last
one's belongs to what a score weighs, so each row gets it times its score; where x splits the
linear's input, whose products are summed behind the way back, each rank of x adds a share of it.
Source: OpenAI, gpt-oss, gpt_oss/torch/model.py, MLPBlock.
"""

from __future__ import annotations

from typing import Any

from workload.grid import Axes
from workload.layout import ZEROS, Layout
from workload.lowering.builder import Builder
from workload.lowering.layers import linear
from workload.lowering.layers.linear import Linear
from workload.lowering.layers.mixers.experts.dispatch import Routed, local_experts
from workload.op import Part

Split = tuple[Axes, Axes]


def declare(b: Builder, own: Linear, owner: Part, axes: Split) -> None:
    """Declare a linear's biases, if the model has them."""
    if not b.gpt.biases:
        return
    whole = (b.gpt.moe.experts, own.n)
    layout = Layout(whole, whole, (b.expert_axes, axes[1]), own.bands, starts=ZEROS)
    b.parameter(f"{owner}.{own.name}.b", owner, layout, sharded=True, of_experts=True)


def add(
    b: Builder, own: Linear, owner: Part, out: str, routed: Routed, axes: Split, scores: str = ""
) -> None:
    """Emit the addition to a linear's output, in place, of each row times its score, if given."""
    if not b.gpt.biases:
        return
    bias = linear.gather(b, f"{own.name}.bias", f"{owner}.{own.name}.b", _tile(b, own, axes))
    reads = [out, bias, routed.counts, *([scores] if scores else [])]
    b.op(f"{own.name}.bias", "expert_bias", reads, [out], **_how(b, axes))


def backward(b: Builder, own: Linear, owner: Part, grad: str, routed: Routed, axes: Split) -> None:
    """Emit the gradient of biases whose rows have no scores from that of the output."""
    if b.gpt.biases:
        full = _gradient(b, own, owner, axes)
        label, reads = f"{own.name}.bias.grad", [grad, routed.counts]
        b.op(label, "expert_bias_grad", reads, [full], **_how(b, axes))
        _accumulate(b, own, owner, full)


def backward_weighted(
    b: Builder, own: Linear, owner: Part, grad: str, routed: Routed, axes: Split, scores: str
) -> str:
    """Emit the gradients of biases whose rows have scores; returns what these have of it, or ""."""
    if not b.gpt.biases:
        return ""
    name = f"{own.name}.bias"
    bias = linear.gather(b, f"{name}.grad", f"{owner}.{own.name}.b", _tile(b, own, axes))
    full, kept = _gradient(b, own, owner, axes), b.buffers[scores]
    how = {"dtype": kept.dtype, "rows_of": kept.rows_of}
    of_scores = b.tensor(f"{name}.scores.grad", kept.shape, **how)
    reads = [grad, routed.counts, scores, bias]
    b.op(f"{name}.grad", "expert_bias_grad", reads, [full, of_scores], **_how(b, axes))
    b.all_reduce(f"{name}.scores.grad.reduce", of_scores, *axes[1])
    _accumulate(b, own, owner, full)
    return of_scores


def _gradient(b: Builder, own: Linear, owner: Part, axes: Split) -> str:
    shape = b.whole_tile(f"{owner}.{own.name}.b", *_tile(b, own, axes))
    return b.tensor(f"{own.name}.bias.dw", shape, role="workspace")


def _accumulate(b: Builder, own: Linear, owner: Part, full: str) -> None:
    linear.add_gradient(b, f"{own.name}.bias", f"{owner}.{own.name}.b", full, first=b.starts)


def _tile(b: Builder, own: Linear, axes: Split) -> tuple[int, int]:
    return local_experts(b), own.n // b.grid.size(*axes[1])


def _how(b: Builder, axes: Split) -> dict[str, Any]:
    even, parts = bool(b.gpt.moe.capacity), b.grid.size(*axes[0])
    return {"count": local_experts(b), "even": even, "parts": parts}
