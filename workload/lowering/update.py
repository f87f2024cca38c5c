"""AdamW, owner by owner: gradients clipped, states brought and stored, parameters updated.

States that live in the host's memory come to the device one owner ahead and go back behind, on
streams of their own. No owner's copies outlive the update of the next but one.
"""

from __future__ import annotations

from dataclasses import replace

from workload.lowering.builder import Builder, Parameter
from workload.op import HOST

Owned = list[Parameter]


def update(b: Builder) -> None:
    """Emit the update of every owner's parameters; a stage may have none."""
    owners: dict[str, Owned] = {}
    for parameter in b.parameters.values():
        owners.setdefault(parameter.owner, []).append(parameter)
    names = list(owners)
    away = b.plan.offload == "optimizer"
    if away and names:
        _to_device(b, names[0], owners[names[0]])
    for at, owner in enumerate(names):
        grads = _clip(
            b, owner, owners[owner], [f"{names[at - 2]}.stored"] if away and at > 1 else []
        )
        if away and at + 1 < len(names):
            _to_device(b, names[at + 1], owners[names[at + 1]])
        _adamw(b, owner, owners[owner], grads)
        if away:
            _to_host(b, owner, owners[owner])


def _clip(b: Builder, owner: str, parameters: Owned, after: list[str]) -> list[str]:
    """Emit the clipping, in place or into wide copies; returns the gradients that AdamW takes."""
    grads = [p.reduced for p in parameters]
    clipped = grads
    if b.summed != b.wide:
        clipped = [
            b.tensor(f"{grad}.wide", b.buffers[grad].shape, b.wide, role="gradients")
            for grad in grads
        ]
    b.op(f"{owner}.clip", "scale", ["clip.scale", *grads, *after], clipped)
    return clipped


def _adamw(b: Builder, owner: str, parameters: Owned, grads: list[str]) -> None:
    """Emit the update; parts of parameters are gathered afterwards."""
    moments = [_at_hand(b, f"{p.name}.{moment}") for moment in ("m", "v") for p in parameters]
    trained = [_at_hand(b, p.trained) for p in parameters]
    copied = [_copy(b, p) for p in parameters]
    copies = [name for name in copied if name]
    reads = [name for name in copies if b.buffers[name].persistent]
    b.op(
        f"{owner}.adamw",
        "adamw",
        [*grads, *moments, *trained, *reads],
        [*moments, *trained, *copies],
        parameters=tuple(p.name for p in parameters),
        decays=tuple(p.decays for p in parameters),
        copied=tuple(map(bool, copied)),
    )
    updated = [copy or part for copy, part in zip(copied, trained, strict=True)]
    pairs = [(p.name, part) for p, part in zip(parameters, updated, strict=True) if p.apart]
    if pairs:
        whole, parts = zip(*pairs, strict=True)
        b.collective(f"{owner}.params.gather", "all_gather", parts, whole, *b.sharding.over)


def _copy(b: Builder, parameter: Parameter) -> str:
    """Where AdamW puts what it trained in the compute precision, if it trains in another."""
    if b.dtype != "bf16":
        return ""
    if not parameter.apart:
        return parameter.name
    shape = b.buffers[parameter.trained].shape
    return b.tensor(f"{parameter.name}.updated", shape, role="workspace")


def _to_device(b: Builder, owner: str, parameters: Owned) -> None:
    states = _away(b, parameters)
    for name in states:
        state = b.buffers[name]
        b.tensor(_at_hand(b, name), state.shape, state.dtype, role="optimizer")
    _move(b, owner, "to_device", states, [_at_hand(b, name) for name in states])


def _to_host(b: Builder, owner: str, parameters: Owned) -> None:
    """Emit the copy back. `stored`, of no bytes, is what waits for it can name."""
    states = _away(b, parameters)
    stored = b.tensor(f"{owner}.stored", (0,), b.wide, role="workspace")
    _move(b, owner, "to_host", [_at_hand(b, name) for name in states], [*states, stored])


def _move(b: Builder, owner: str, kind: str, reads: list[str], writes: list[str]) -> None:
    nbytes = sum(map(b.nbytes, reads))
    b.op(f"{owner}.{kind}", kind, reads, writes, nbytes=nbytes)
    b.ops[-1] = replace(b.ops[-1], stream=kind)


def _away(b: Builder, parameters: Owned) -> list[str]:
    """The states of some parameters that live in the host's memory."""
    every = [name for p in parameters for name in (f"{p.name}.m", f"{p.name}.v", p.trained)]
    return [name for name in every if b.buffers[name].role == HOST]


def _at_hand(b: Builder, state: str) -> str:
    """The name under which AdamW finds a state."""
    return f"{state}.staged" if b.buffers[state].role == HOST else state
