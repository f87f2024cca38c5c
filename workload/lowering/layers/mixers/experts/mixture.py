"""A layer's experts: routing, dispatch, their MLPs as grouped matmuls, and the sum of what returns.

Letters: T tokens of a rank, k experts for each, S rows sent to experts (T k, or with a capacity the
places of all experts), E experts, of which a rank holds E / `expert`. A rank sends its rows to the
ranks that hold their experts by an all-to-all, and gets as many back. How many arrive depends on
the routing; here as many as a rank sends, which is exact with a capacity and the mean without.
Scores weigh the inner activation, so that what returns is a plain sum and need not be kept.

An expert's matrices are split over y, and over x as those of other linears are or over the ranks
that `expert_tensor` says (`workload/splits/experts.py`): the rows of these are gathered first, and
sums over them are of T rows; with one of them each rank routes its own rows (Megatron-Core's
parallel folding, 2504.14960).
Source: Megatron-Core, transformer/moe (token_dispatcher.py, experts.py), 2504.14960.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from topologies.records import record
from workload.grid import Axes
from workload.layout import NORMAL, RESIDUAL, Layout
from workload.lowering.builder import Builder
from workload.lowering.layers import linear
from workload.lowering.layers.linear import Linear
from workload.lowering.layers.mixer import Kept, Mixer
from workload.lowering.layers.mixers import mlp
from workload.lowering.layers.mixers.experts import biases, latent_columns, moves, rows
from workload.lowering.layers.mixers.experts.dispatch import (
    Routed,
    by_expert,
    from_experts,
    local_experts,
    to_ranks,
    width,
)
from workload.lowering.layers.mixers.experts.routing import (
    declare_router,
    route,
    route_grad,
    scores_grad,
)
from workload.lowering.layers.mixers.narrow_rows import widened
from workload.lowering.layers.recomputation import in_recomputation
from workload.models import moe
from workload.op import (
    EXPERT_COMBINE,
    EXPERT_DISPATCH,
    FEED_FORWARD,
    INPUT_GRAD,
    ROUTING,
    WEIGHT_GRAD,
    Part,
)
from workload.recipes.table import GRADIENT
from workload.recomputation.parts import ACTIVATION, EXPERTS, SHARED, parts_of

GROUPED = "grouped_matmul"


@record
class Saved:
    """Names of what the experts' forward leaves behind for their backward.

    `rows` are those that arrived, by expert, `scores` what weighs them; or what is `kept` weighs
    them when they are back. `combined` are the sums on latent columns, if there are any.
    """

    source: str
    routed: Routed
    rows: str
    scores: str
    up: str
    activation: str
    shared: tuple[str, str]
    kept: moves.Kept = None
    combined: str = ""


def linears(b: Builder) -> dict[str, Linear]:
    """The linears of all experts, and of the MLP that all tokens pass."""
    gpt, width = b.gpt, moe.routed_width(b.gpt)
    found = {
        "up": Linear("experts.up", width, (gpt.moe.expert_ffn,) * gpt.mlp_bands),
        "down": Linear("experts.down", gpt.moe.expert_ffn, (width,), transposed=True),
    }
    if gpt.moe.shared_ffn:
        found |= {
            "shared.up": Linear("shared.up", gpt.hidden, (gpt.moe.shared_ffn,) * gpt.mlp_bands),
            "shared.down": Linear(
                "shared.down", gpt.moe.shared_ffn, (gpt.hidden,), transposed=True
            ),
        }
    return found


def declare(b: Builder, owner: Part) -> None:
    """Declare the router and the weights of experts and of the shared MLP."""
    declare_router(b, owner)
    latent_columns.declare(b, owner)
    for name, each in linears(b).items():
        if name.startswith("shared"):
            linear.declare(b, each, owner)
            continue
        whole = (b.gpt.moe.experts, each.k, each.n)
        split = (b.expert_axes, *_axes(b, each))
        starts = RESIDUAL if each.transposed else NORMAL
        layout = Layout(whole, whole, split, each.bands, starts=starts)
        weight = f"{owner}.{each.name}.w"
        b.parameter(weight, owner, layout, sharded=True, of_experts=True)
        biases.declare(b, each, owner, _axes(b, each))


def forward(
    b: Builder, owner: Part, normed: str, weights: dict[str, str], *, whole: bool
) -> tuple[str, Saved]:
    """Emit routing and experts on the rows `normed`; returns the output's name and what is saved.
    Without `whole` it ends before the experts' last linear, and the output has no name."""
    every = linears(b)
    taken = latent_columns.to_latent(b, owner, normed, weights)
    source, scores, routed = route(b, owner, normed, taken)
    sent, weighing, kept = moves.sent(b, source, scores, routed)
    arrived = to_ranks(b, "dispatch", sent, routed)
    arrived_scores = to_ranks(b, "dispatch.scores", weighing, routed)
    shared = _shared_up(b, owner, normed, weights) if b.gpt.moe.shared_ffn else ("", "")
    rows_in = widened(b, "dispatch", by_expert(b, "dispatch", arrived, routed), width(b))
    scores_in = by_expert(b, "dispatch.scores", arrived_scores, routed)
    up, weights["up"] = _forward(b, every["up"], owner, rows_in, routed)
    b.all_reduce("experts.up.reduce", up, *_axes(b, every["up"])[0])
    biases.add(b, every["up"], owner, up, routed, _axes(b, every["up"]))
    activation = mlp.activate(b, up, scores_in)
    saved = Saved(source, routed, rows_in, scores_in, mlp.kept(b, up), activation, shared)
    latent = b.gpt.moe.expert_latent > 0
    if not whole and kept is None and not latent:
        return "", saved
    out, weights["down"] = _forward(b, every["down"], owner, activation, routed)
    biases.add(b, every["down"], owner, out, routed, _axes(b, every["down"]), scores_in)
    returned, also = from_experts(b, "combine", out, routed, EXPERT_COMBINE), ""
    if kept is not None:
        kept = replace(kept, returned=returned)
        saved = replace(saved, kept=kept)
        if not whole and not latent:
            return "", saved
    if b.gpt.moe.shared_ffn and whole:
        with b.within(ROUTING):
            down = every["shared.down"]
            also, weights["shared.down"] = linear.forward(b, down, owner, shared[1])
    total = moves.combined(b, source, returned, routed, kept)
    total = rows.reduce(b, "experts.reduce", total, *_axes(b, every["down"])[0])
    if latent:
        saved = replace(saved, combined=total)
        if not whole:
            return "", saved
        total = latent_columns.from_latent(b, owner, total, weights)
    if also:
        with b.within(ROUTING):
            b.op("shared.add", "add", [total, also], [total])
    return total, saved


def _again(b: Builder, owner: Part, normed: str, saved: Saved, parts: frozenset[str]) -> Saved:
    """Emit what runs once more of the experts; returns what is at hand then."""
    if EXPERTS in parts:
        return forward(b, owner, normed, {}, whole=False)[1]
    if SHARED in parts:
        saved = replace(saved, shared=_shared_up(b, owner, normed, {}))
    if ACTIVATION in parts:
        columns = b.gpt.mlp_bands * b.buffers[saved.activation].shape[1]
        up = mlp.at_hand(b, saved.up, columns)
        saved = replace(saved, up=up, activation=mlp.activate(b, up, saved.scores))
    return saved


def backward(b: Builder, owner: Part, kept: Kept, grad: str, *, again: str) -> str:
    """Emit the gradients from `grad`, that of the output; returns that of the normalised rows."""
    normed, saved, weights = kept
    with in_recomputation(b):
        saved = _again(b, owner, normed, saved, parts_of(again))
    every, routed = linears(b), saved.routed
    weight = {name: weights.get(name, "") for name in (*every, *latent_columns.NAMES)}
    d = latent_columns.from_latent_grad(b, owner, saved.combined, weight, grad)
    d, placed = moves.combined_grad(b, d, routed, saved.kept)
    d = to_ranks(b, "combine.grad", d, routed, EXPERT_COMBINE)
    also = _shared_down_grad(b, owner, saved, grad, weight) if b.gpt.moe.shared_ffn else ""
    d = by_expert(b, "combine.grad", d, routed)
    d = widened(b, "combine.grad", d, width(b), kind=GRADIENT)
    split = _axes(b, every["down"])
    more = biases.backward_weighted(b, every["down"], owner, d, routed, split, saved.scores)
    d = _backward(b, every["down"], owner, saved.activation, weight["down"], d, routed)
    b.all_reduce("experts.down.grad.reduce", d, *_axes(b, every["down"])[1])
    d, d_scores = _activation_grad(b, saved, d)
    if more:
        b.op("experts.down.bias.scores.add", "add", [d_scores, more], [d_scores])
    biases.backward(b, every["up"], owner, d, routed, _axes(b, every["up"]))
    d = _backward(b, every["up"], owner, saved.rows, weight["up"], d, routed)
    d = from_experts(b, "dispatch.grad", d, routed, EXPERT_DISPATCH)
    d_scores = from_experts(b, "dispatch.scores.grad", d_scores, routed, EXPERT_DISPATCH)
    if also:
        also = _shared_up_grad(b, owner, normed, also, weight)
    d = moves.sent_grad(b, saved.source, d, routed, saved.kept)
    d = rows.reduce(b, "experts.grad.reduce", d, *_axes(b, every["up"])[1])
    d = latent_columns.to_latent_grad(b, owner, normed, weight, d)
    placed = placed or scores_grad(b, normed, routed, d_scores)
    total = route_grad(b, owner, normed, routed, placed)
    with b.within(ROUTING):
        b.op("router.add", "add", [total, d], [total])
        if also:
            b.op("shared.add.grad", "add", [total, also], [total])
    return total


def _activation_grad(b: Builder, saved: Saved, grad: str) -> tuple[str, str]:
    """Emit the gradient of the activation's input; returns it, and that of the rows' scores, if
    they have any."""
    if saved.scores:
        return mlp.weighted_grad(b, saved.up, saved.scores, grad)
    return mlp.activation_grad(b, saved.up, grad), ""


def _shared_up(b: Builder, owner: Part, normed: str, weights: dict[str, str]) -> tuple[str, str]:
    with b.within(ROUTING):
        up, weights["shared.up"] = linear.forward(b, linears(b)["shared.up"], owner, normed)
        activation = mlp.activate(b, up, name="shared.")
        return mlp.kept(b, up, name="shared."), activation


def _shared_up_grad(
    b: Builder, owner: Part, normed: str, grad: str, weights: dict[str, str]
) -> str:
    """Emit the gradients of the shared MLP's first linear; returns that of its input."""
    own, weight = linears(b)["shared.up"], weights["shared.up"]
    with b.within(ROUTING):
        return linear.backward(b, own, owner, source=normed, weight=weight, grad=grad)


def _shared_down_grad(
    b: Builder, owner: Part, saved: Saved, grad: str, weights: dict[str, str]
) -> str:
    """Emit the gradients of the shared MLP's second half; returns that of its first linear's
    output."""
    own, weight, (up, activation) = linears(b)["shared.down"], weights["shared.down"], saved.shared
    with b.within(ROUTING):
        d = linear.backward(b, own, owner, source=activation, weight=weight, grad=grad)
        return mlp.activation_grad(b, up, d, name="shared.")


def _forward(b: Builder, own: Linear, owner: Part, source: str, routed: Routed) -> tuple[str, str]:
    """Emit O = I W for the rows of each expert; returns the output and the weights used."""
    local, k, n = _tile(b, own)
    count = b.buffers[source].shape[0]
    weight = linear.gather(b, own.name, f"{owner}.{own.name}.w", (local, k, n))
    out = b.tensor(f"{own.name}.o", (count, n), rows_of=b.buffers[source].rows_of)
    _grouped(b, f"{own.name}.matmul", [source, weight, routed.counts], out, "NN", (count, n, k))
    return out, weight


def _backward(
    b: Builder, own: Linear, owner: Part, source: str, weight: str, grad: str, routed: Routed
) -> str:
    """Emit the gradients of a grouped linear's weights and rows; returns that of the rows."""
    shape = _, k, n = _tile(b, own)
    name, parameter, count = own.name, f"{owner}.{own.name}.w", b.buffers[source].shape[0]
    weight = weight or linear.gather(b, f"{name}.grad", parameter, shape)
    out = b.tensor(f"{name}.di", (count, k), rows_of=b.buffers[source].rows_of)
    reads = [grad, weight, routed.counts]
    _grouped(b, f"{name}.grad.input", reads, out, "NT", (count, k, n), INPUT_GRAD)
    full = b.tensor(f"{name}.dw", b.whole_tile(parameter, *shape), role="workspace")
    reads = [source, grad, routed.counts]
    _grouped(b, f"{name}.grad.weight", reads, full, "TN", (k, n, count), WEIGHT_GRAD)
    linear.add_gradient(b, name, parameter, full, first=b.starts)
    return out


def _grouped(
    b: Builder,
    label: str,
    reads: list[str],
    write: str,
    form: str,
    shape: tuple[int, int, int],
    purpose: str = "",
) -> None:
    """Emit the matmuls of all experts of a rank; `shape` counts the rows of all of them in m (or,
    of a weight's gradient, in k), the attributes those of one."""
    (m, n, k), count = shape, local_experts(b)
    rows_of_one = {"m": -(-m // count), "k": k} if form != "TN" else {"m": m, "k": -(-k // count)}
    how: dict[str, Any] = {"form": form, "n": n, "count": count, **rows_of_one}
    how["even"] = bool(b.gpt.moe.capacity)
    b.op(label, GROUPED, reads, [write], flops=2 * m * n * k, purpose=purpose, **how)


def _axes(b: Builder, own: Linear) -> tuple[Axes, Axes]:
    """The axes that split input and output width of an expert's linear."""
    first, second = (
        b.expert_tensor_axes if axis == "tp" else (axis,) for axis in (own.k_axis, own.n_axis)
    )
    return first, second


def _tile(b: Builder, own: Linear) -> tuple[int, int, int]:
    k_axes, n_axes = _axes(b, own)
    return local_experts(b), own.k // b.grid.size(*k_axes), own.n // b.grid.size(*n_axes)


MIXER = Mixer("norm2", "down", declare, forward, backward, linears, ROUTING, FEED_FORWARD)
