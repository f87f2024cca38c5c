"""A linear that is not split over x and y: each of its ranks does all rows alike, or with sequence
parallelism its own, so that its weight's gradient is then a sum over them too.
"""

from __future__ import annotations

from workload.layout import NORMAL, RESIDUAL, Layout
from workload.lowering.builder import Builder
from workload.lowering.layers import linear
from workload.lowering.layers import sequence_parallel as rows
from workload.lowering.layers.linear import Linear
from workload.op import INPUT_GRAD, WEIGHT_GRAD, Part


def declare(b: Builder, own: Linear, owner: Part) -> None:
    """Declare the weight, which ranks of x and y hold in copies."""
    shape = (own.k, own.n)
    starts = RESIDUAL if own.transposed else NORMAL
    layout = Layout(shape, shape, ((), ()), starts=starts)
    parts = b.shards_of("rows") if rows.parts(b) > 1 else ()
    b.parameter(f"{owner}.{own.name}.w", owner, layout, sharded=True, terms=parts)


def forward(b: Builder, own: Linear, owner: Part, source: str) -> tuple[str, str]:
    """Emit O = I W; returns the output and the weight used."""
    count = b.buffers[source].shape[0]
    weight = linear.gather(b, own.name, f"{owner}.{own.name}.w", (own.k, own.n))
    out = b.tensor(f"{own.name}.o", (count, own.n))
    shape, reads = (count, own.n, own.k), [source, weight]
    linear.matmul(b, f"{own.name}.matmul", reads, out, "NN", shape, replicas=_copies(b))
    return out, weight


def backward(b: Builder, own: Linear, owner: Part, source: str, weight: str, grad: str) -> str:
    """Emit the gradients of input and weight; returns that of the input."""
    name, parameter, count = own.name, f"{owner}.{own.name}.w", b.buffers[source].shape[0]
    weight = weight or linear.gather(b, f"{name}.grad", parameter, (own.k, own.n))
    out, copies = b.tensor(f"{name}.di", (count, own.k)), _copies(b)
    shape, reads = (count, own.k, own.n), [grad, weight]
    linear.matmul(b, f"{name}.grad.input", reads, out, "NT", shape, INPUT_GRAD, copies)
    full = b.tensor(f"{name}.dw", b.whole_tile(parameter, own.k, own.n), role="workspace")
    shape, reads = (own.k, own.n, count), [source, grad]
    linear.matmul(b, f"{name}.grad.weight", reads, full, "TN", shape, WEIGHT_GRAD, copies)
    linear.add_gradient(b, name, parameter, full, first=b.starts)
    return out


def _copies(b: Builder) -> int:
    """How many ranks do the same rows."""
    return b.grid.size(*b.shards_of("rows"), *b.shards_of("width")) // rows.parts(b)
