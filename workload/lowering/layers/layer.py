"""The layers of models: one sublayer behind another, forward and backward."""

from __future__ import annotations

from workload.lowering.builder import Builder
from workload.lowering.layers import sublayer
from workload.lowering.layers.mixer import Mixer
from workload.lowering.layers.mixers.table import mixers_of
from workload.lowering.layers.sublayer import Saved
from workload.op import Part

AllSaved = tuple[Saved, ...]  # by sublayers


def declare(b: Builder, owner: Part) -> None:
    """Declare a layer's parameters, in the order in which they are used."""
    for mixer in _mixers(b, owner):
        sublayer.declare(b, owner, mixer)


def forward(b: Builder, owner: Part, source: str, *, whole: bool = True) -> tuple[str, AllSaved]:
    """Emit the layer on the residual stream `source`; returns its output and what it saved.

    A layer that is not `whole` ends before its last linear, which has no output then.
    """
    found, mixers = list[Saved](), _mixers(b, owner)
    for at, mixer in enumerate(mixers):
        is_whole = whole or at < len(mixers) - 1
        source, saved = sublayer.forward(b, owner, mixer, source, whole=is_whole)
        found.append(saved)
    return source, tuple(found)


def backward(b: Builder, owner: Part, saved: AllSaved, grad: str, *, again: str) -> str:
    """Emit the gradients of a layer from `grad`, that of its output; returns its input's. `again`
    says what of the layer is recomputed (see `sublayer.backward`)."""
    mixers = _mixers(b, owner)
    for at in reversed(range(len(mixers))):
        before = mixers[at - 1].last if at else ""
        grad = sublayer.backward(b, owner, mixers[at], saved[at], grad, again=again, before=before)
    return grad


def _mixers(b: Builder, owner: Part) -> tuple[Mixer, ...]:
    return mixers_of(b.gpt, owner.layer)
