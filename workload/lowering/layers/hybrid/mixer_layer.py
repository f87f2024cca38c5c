"""A layer of a hybrid: a norm, its one mixer, and the addition to the residual stream.

Norms and linears have the names that they have in a transformer's layer, of which attention and an
MLP are a half each.
"""

from __future__ import annotations

from topologies.records import record
from workload.lowering.builder import Builder
from workload.lowering.layers import norm
from workload.lowering.layers.further.recomputation import in_recomputation
from workload.lowering.layers.hybrid import mamba, usual_mixers
from workload.lowering.layers.hybrid.mixer import Mixer
from workload.models.hybrids.pattern import ATTENTION, EXPERTS, MAMBA, MLP, mixer_of
from workload.op import Part
from workload.recomputation.parts import NORMS, parts_of

MIXERS: dict[str, Mixer] = {
    MAMBA: mamba.MIXER,
    ATTENTION: usual_mixers.ATTENTION,
    MLP: usual_mixers.MLP,
    EXPERTS: usual_mixers.EXPERTS,
}


@record
class Saved:
    """Names of what a layer's forward leaves behind for its backward: its input, the normalised one
    with the statistics, and what its mixer kept."""

    source: str
    norm: tuple[str, str]
    inner: object
    weights: dict[str, str]


def is_one(b: Builder, owner: Part) -> bool:
    """Whether a layer is such a layer."""
    return bool(mixer_of(b.gpt, owner.layer))


def declare(b: Builder, owner: Part) -> None:
    """Declare a layer's parameters, in the order in which they are used."""
    mixer = _mixer(b, owner)
    norm.declare(b, f"{owner}.{mixer.norm}", owner)
    mixer.declare(b, owner)


def forward(b: Builder, owner: Part, source: str, *, whole: bool = True) -> tuple[str, Saved]:
    """Emit the layer on the residual stream `source`; returns its output and what it saved.

    A layer that is not `whole` ends before its last linear, and has no output then.
    """
    mixer, weights = _mixer(b, owner), dict[str, str]()
    with b.within(mixer.module_of_norm):
        normed, stats = norm.forward(b, mixer.norm, f"{owner}.{mixer.norm}", source)
    with b.within(mixer.module):
        out, inner = mixer.forward(b, owner, normed, weights, whole=whole)
        if whole:
            b.op(f"{mixer.last}.add", "add", [out, source], [out])
    return out, Saved(source, (normed, stats), inner, weights)


def backward(b: Builder, owner: Part, saved: Saved, grad: str, *, again: str) -> str:
    """Emit the gradients of a layer from `grad`, that of its output; returns its input's. `again`
    says what of the layer is recomputed."""
    mixer, weights = _mixer(b, owner), saved.weights if again == "full" else {}
    normed, stats = saved.norm
    if NORMS in parts_of(again):
        with in_recomputation(b), b.within(mixer.module_of_norm):
            normed, stats = norm.forward(b, mixer.norm, f"{owner}.{mixer.norm}", saved.source)
    with b.within(mixer.module):
        d = mixer.backward(b, owner, (normed, saved.inner, weights), grad, again=again)
    with b.within(mixer.module_of_norm):
        norm.backward(b, mixer.norm, f"{owner}.{mixer.norm}", (saved.source, stats), d)
    b.op("add.grad", "add", [d, grad], [d])
    return d


def _mixer(b: Builder, owner: Part) -> Mixer:
    return MIXERS[mixer_of(b.gpt, owner.layer)]
