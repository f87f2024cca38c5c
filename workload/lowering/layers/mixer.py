"""What a sublayer knows of its mixer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topologies.records import record
from workload.lowering.builder import Builder
from workload.lowering.layers import linear
from workload.lowering.layers.linear import Linear
from workload.op import MIXER, Part

Kept = tuple[str, Any, dict[str, str]]  # the normalised input, what the forward kept, weight tiles


@record
class Mixer:
    """The functions of a mixer, and the names of the norm before it and of its last linear.

    `declare` declares its parameters. `forward` takes the layer, the normalised rows, a dictionary
    for the weight tiles it uses, and whether it is `whole`; it returns the output's name and what
    is kept. `backward` takes the layer, what was kept, the output's gradient and what of it runs
    `again`, and returns the gradient of the normalised rows; weight tiles are those that
    recomputation gathered, or none. `products` gives its linears by name, with the columns of each
    product of PyTorch as bands. The norm and the mixer belong to modules of the layer
    (`Op.module`).
    """

    norm: str
    last: str
    declare: Callable[[Builder, Part], None]
    forward: Callable[..., tuple[str, Any]]
    backward: Callable[..., str]
    products: Callable[[Builder], dict[str, Linear]]
    module_of_norm: str = MIXER
    module: str = MIXER


def linear_grad(
    b: Builder, own: Linear, owner: Part, source: str, weights: dict[str, str], grad: str
) -> str:
    """Emit the gradients of a mixer's linear; returns that of its input."""
    weight = weights.get(own.name, "")
    return linear.backward(b, own, owner, source=source, weight=weight, grad=grad)
