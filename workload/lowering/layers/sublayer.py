"""A sublayer: a norm, a mixer, dropout and the addition to the residual stream.

A transformer's layer has two of them, attention and an MLP or experts; a hybrid's has one. The
residual stream is m x h/y, in copies over x.

Parts of a layer that are recomputed are kept by their inputs alone and run once more when the
gradient of the mixer's output arrives, the norm first. Source: Korthikanti et al. (2205.05198),
section 5; NVIDIA/Megatron-LM, megatron/core/tensor_parallel/random.py (CheckpointWithoutOutput),
and megatron/core/transformer, transformer_layer.py, moe/moe_layer.py, moe/experts.py and
multi_latent_attention.py.
"""

from __future__ import annotations

from topologies.records import record
from workload.lowering.builder import Builder
from workload.lowering.layers import dropout, norm
from workload.lowering.layers.mixer import Mixer
from workload.lowering.layers.recomputation import in_recomputation
from workload.op import Part
from workload.recomputation.parts import FULL, NORMS, parts_of


@record
class Saved:
    """Names of what a sublayer's forward leaves behind for its backward: its input, the normalised
    one with the statistics, what its mixer kept, weight tiles, and the mask of dropout."""

    source: str
    norm: tuple[str, str]
    inner: object
    weights: dict[str, str]
    mask: str


def declare(b: Builder, owner: Part, mixer: Mixer) -> None:
    """Declare the parameters, in the order in which they are used."""
    norm.declare(b, f"{owner}.{mixer.norm}", owner)
    mixer.declare(b, owner)


def forward(
    b: Builder, owner: Part, mixer: Mixer, source: str, *, whole: bool = True
) -> tuple[str, Saved]:
    """Emit a sublayer of a layer on the residual stream `source`; returns its output and what it
    saved. One that is not `whole` ends before its last linear, and has no output then."""
    weights, mask = dict[str, str](), ""
    with b.within(mixer.module_of_norm):
        normed = norm.forward(b, mixer.norm, f"{owner}.{mixer.norm}", source)
    with b.within(mixer.module):
        out, inner = mixer.forward(b, owner, normed[0], weights, whole=whole)
        if whole:
            mask = dropout.forward(b, mixer.last, f"{owner}.{mixer.last}", out)
            b.op(f"{mixer.last}.add", "add", [out, source], [out])
    return out, Saved(source, normed, inner, weights, mask)


def backward(
    b: Builder, owner: Part, mixer: Mixer, saved: Saved, grad: str, *, again: str, before: str
) -> str:
    """Emit the gradients of a sublayer from `grad`, that of its output; returns its input's.

    `again` says what of the layer is recomputed: after "full" the weight tiles are still at hand,
    since the recomputation gathered them. `before` is the last linear of the sublayer before.
    """
    weights = saved.weights if again == FULL else {}
    normed, stats = saved.norm
    with b.within(mixer.module):
        d = dropout.backward(b, mixer.last, saved.mask, grad)
    if NORMS in parts_of(again):
        with in_recomputation(b), b.within(mixer.module_of_norm):
            normed, stats = norm.forward(b, mixer.norm, f"{owner}.{mixer.norm}", saved.source)
    with b.within(mixer.module):
        d = mixer.backward(b, owner, (normed, saved.inner, weights), d, again=again)
    with b.within(mixer.module_of_norm):
        norm.backward(b, mixer.norm, f"{owner}.{mixer.norm}", (saved.source, stats), d)
    b.op(f"{before}.add.grad" if before else "add.grad", "add", [d, grad], [d])
    return d
