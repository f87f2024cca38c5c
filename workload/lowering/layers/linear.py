"""The 3D tensor-parallel linear layer, O = I W, forward and backward.

Letters: I is m x k, W is k x n. Rows are split over z (and data). A normal layer has k over y and n
over x; a transposed one k over x and n over y, so that the output of one is the input layout of the
other. Each tile of W is flattened and split once more over z, and over data as `zero` says.
Source: AxoNN (SC24), section 3; design as in 2305.13525.
"""

from __future__ import annotations

from typing import Any

from topologies.records import record
from workload.layout import NORMAL, RESIDUAL, ZEROS, Layout
from workload.lowering.builder import Builder
from workload.lowering.host_parameters import add_to_sum, fetched, is_away
from workload.lowering.layers import sequence_parallel as rows
from workload.lowering.updates import simple
from workload.op import (
    ADD_SCATTERED,
    FORWARD,
    GRAD_SCATTER,
    INPUT_GRAD,
    INPUT_GRAD_REDUCE,
    NONE,
    SOURCE_GATHER,
    WEIGHT_GATHER,
    WEIGHT_GRAD,
    Part,
)


@record
class Linear:
    """One linear layer of a block: its name, input width, widths side by side, orientation."""

    name: str
    k: int
    bands: tuple[int, ...]
    transposed: bool = False

    @property
    def n(self) -> int:
        """Output width, all bands together."""
        return sum(self.bands)

    @property
    def k_axis(self) -> str:
        """The axis that splits the input width; the forward all-reduce runs over it."""
        return "tp" if self.transposed else "y"

    @property
    def n_axis(self) -> str:
        """The axis that splits the output width; the backward all-reduce runs over it."""
        return "y" if self.transposed else "tp"


def declare(b: Builder, linear: Linear, owner: Part) -> None:
    """Declare the weight (split over x and y, then sharded) and, if any, the bias."""
    shape = (linear.k, linear.n)
    split = ((linear.k_axis,), (linear.n_axis,))
    starts = RESIDUAL if linear.transposed else NORMAL
    weight = Layout(shape, shape, split, linear.bands, starts=starts)
    b.parameter(f"{owner}.{linear.name}.w", owner, weight, sharded=True)
    if b.gpt.has_bias(linear.name):
        width = (linear.n,)
        bias = Layout(width, width, ((linear.n_axis,),), linear.bands, starts=ZEROS)
        b.parameter(f"{owner}.{linear.name}.b", owner, bias, sharded=False)


def gather(b: Builder, label: str, weight: str, shape: tuple[int, ...]) -> str:
    """All-gather a weight tile over the axes that shard it; without any it is the parameter. A part
    in the host's memory is copied to the device before.

    Without `reshard` a micro-batch gathers each weight once.
    """
    axes = b.parameters[weight].sharding.parameters
    if b.grid.size(*axes) == 1 and not is_away(b, weight):
        return weight
    if b.once_a_step:
        return _gathered_for_many(b, label, weight, shape)
    if b.plan.reshard:
        return _whole(b, label, weight, shape)
    once = (b.block.micro_batch, weight)
    if once not in b.gathered:
        b.gathered[once] = _whole(b, label, weight, shape)
    return b.gathered[once]


def _gathered_for_many(b: Builder, label: str, weight: str, shape: tuple[int, ...]) -> str:
    """A tile that stays whole from one micro-batch to another: without `reshard` for all of the
    step, with it from a backward pass to the end of the next forward pass, whose micro-batch may
    be another one.

    Source: pytorch/pytorch, torch/distributed/pipelining/stage.py, backward_maybe_with_nosync
    (set_reshard_after_backward(False)); fsdp/_fully_shard/_fsdp_param_group.py, unshard.
    """
    key = NONE, weight
    drops = b.plan.reshard and b.block.phase == FORWARD
    known = b.gathered.pop(key, "") if drops else b.gathered.get(key, "")
    full = known or _whole(b, label, weight, shape)
    if not drops:
        b.gathered[key] = full
    return full


def _whole(b: Builder, label: str, weight: str, shape: tuple[int, ...]) -> str:
    """Emit what makes a weight's tile whole on the device; returns its name."""
    axes = b.parameters[weight].sharding.parameters
    part = fetched(b, label, weight) if is_away(b, weight) else weight
    if b.grid.size(*axes) == 1:
        return part
    full = b.tensor(f"{label}.w.full", b.whole_tile(weight, *shape), role="gathered")
    gathered = [part], [full]
    b.collective(f"{label}.gather", "all_gather", *gathered, *axes, purpose=WEIGHT_GATHER)
    return full


def forward(b: Builder, linear: Linear, owner: Part, source: str) -> tuple[str, str]:
    """Emit O = I W (+ bias); returns the names of the output and of the weight tile used."""
    (k, n), name = _tile(b, linear), linear.name
    source = source if linear.transposed else rows.gather(b, f"{name}.rows", source)
    weight = gather(b, name, f"{owner}.{linear.name}.w", (k, n))
    bias = [f"{owner}.{linear.name}.b"] if b.gpt.has_bias(linear.name) else []
    out = b.tensor(f"{name}.o", (b.rows, n))
    fused = bias if b.grid.size(linear.k_axis) == 1 else []
    matmul(b, f"{name}.matmul", [source, weight, *fused], out, "NN", (b.rows, n, k))
    out = rows.reduce(b, f"{name}.reduce", out, linear.k_axis)
    if bias != fused:
        b.op(f"{name}.bias", "bias", [out, *bias], [out])
    return out, weight


def backward(
    b: Builder,
    linear: Linear,
    owner: Part,
    *,
    source: str,
    weight: str,
    grad: str,
) -> str:
    """Emit the gradients of input, weight and bias (if any) from `grad` = dO; returns dI's name.

    `weight` is the tile that a recomputation gathered, or "" to gather it again. The input's rows,
    if split, are gathered again too (beside the input's gradient, with OAR).
    """
    (k, n), name, micro_batch = _tile(b, linear), linear.name, b.block.micro_batch
    owned = f"{owner}.{name}"
    if b.gpt.has_bias(name):
        reads, writes = b.grad_writes(f"{owned}.b", micro_batch)
        b.op(f"{name}.bias.grad", "column_sum", [grad, *reads], writes, first=b.starts)
    if linear.transposed:
        grad = rows.gather(b, f"{name}.grad.rows", grad)
    else:
        source = rows.gather(b, f"{name}.grad.source", source, SOURCE_GATHER)
    weight = weight or gather(b, f"{name}.grad", f"{owned}.w", (k, n))
    out = b.tensor(f"{name}.di", (b.rows, k))
    matmul(b, f"{name}.grad.input", [grad, weight], out, "NT", (b.rows, k, n), INPUT_GRAD)
    out = rows.reduce(b, f"{name}.grad.reduce", out, linear.n_axis, purpose=INPUT_GRAD_REDUCE)
    weight_gradient(b, name, f"{owned}.w", (source, grad), (k, n))
    return out


def weight_gradient(
    b: Builder,
    name: str,
    parameter: str,
    operands: tuple[str, str],
    shape: tuple[int, int],
    first: bool | None = None,
) -> None:
    """Emit dW = left^T right, its reduce-scatter and its addition to the gradient, which the
    `first` one overwrites: that of the first micro-batch, unless told."""
    full = b.tensor(f"{name}.dw", b.whole_tile(parameter, *shape), role="workspace")
    matmul(b, f"{name}.grad.weight", list(operands), full, "TN", (*shape, b.rows), WEIGHT_GRAD)
    first = b.starts if first is None else first
    add_gradient(b, name, parameter, full, first=first)


def add_gradient(b: Builder, name: str, parameter: str, full: str, *, first: bool) -> None:
    """Emit the reduce-scatter of a weight's gradient and its addition to the rank's part, or the
    update itself.

    Where the parts of S are parts of z's, that is one reduce-scatter over z and one over S.
    """
    part, held = full, f"{name}.dw"
    sharding = b.parameters[parameter].sharding
    for over in sharding.collectives(sharding.gradients):
        count = b.grid.size(*over)
        if count == 1:
            continue
        label = f"{name}.grad.scatter" if part == full else f"{name}.grad.scatter.{over[0]}"
        held = f"{held}.shard"
        shard = b.tensor(held, (b.buffers[part].elements // count,), role="workspace")
        scattered = [part], [shard]
        b.collective(label, "reduce_scatter", *scattered, *over, purpose=GRAD_SCATTER)
        part = shard
    purpose = ADD_SCATTERED if part != full else ""
    if b.away:
        if b.grid.size(*sharding.copies) > 1:
            summed = f"{name}.grad.copies", "all_reduce", [part], [part]
            b.collective(*summed, *sharding.copies, purpose=GRAD_SCATTER)
        add_to_sum(b, name, parameter, part, first=first, purpose=purpose)
        return
    if b.rule.in_backward:
        simple.emit_in_backward(b, name, parameter, part, purpose, first=first)
        return
    reads, writes = b.grad_writes(parameter, 0 if first else 1)
    b.op(
        f"{name}.grad.accumulate",
        "accumulate",
        [part, *reads],
        writes,
        purpose=purpose,
        first=first,
    )


def matmul(
    b: Builder,
    label: str,
    reads: list[str],
    write: str,
    form: str,
    shape: tuple[int, int, int],
    purpose: str = "",
    replicas: int = 1,
) -> None:
    """Emit one matmul: `form` says which operands are transposed, `shape` is its (m, n, k);
    `replicas` ranks compute the same."""
    m, n, k = shape
    how: dict[str, Any] = {"form": form, "m": m, "n": n, "k": k, "replicas": replicas}
    b.op(label, "matmul", reads, [write], flops=2 * m * n * k, purpose=purpose, **how)


def _tile(b: Builder, linear: Linear) -> tuple[int, int]:
    return linear.k // b.grid.size(linear.k_axis), linear.n // b.grid.size(linear.n_axis)
