"""AdamW, owner by owner: gradients clipped, states brought and stored, parameters updated.

States that live in the host's memory come to the device one owner ahead and go back behind, on
streams of their own. No owner's copies outlive the update of the next but one.
"""

from __future__ import annotations

from dataclasses import replace

from workload.lowering.builder import Builder, Parameter
from workload.op import HOST, PARAMETER_GATHER, Part

Owned = list[Parameter]


def update(b: Builder) -> None:
    """Emit the update of every owner's parameters; a stage may have none."""
    owners: dict[Part, Owned] = {}
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


def _clip(b: Builder, owner: Part, parameters: Owned, after: list[str]) -> list[str]:
    """Emit the clipping, in place or into wide copies; returns the gradients that AdamW takes."""
    grads = [p.reduced for p in parameters]
    clipped = grads
    if b.summed != b.wide:
        clipped = [
            b.of_parameter(p, f"{p.reduced}.wide", b.buffers[p.reduced].shape, b.wide, "gradients")
            for p in parameters
        ]
    b.op("clip", "scale", ["clip.scale", *grads, *after], clipped, part=owner)
    return clipped


def _adamw(b: Builder, owner: Part, parameters: Owned, grads: list[str]) -> None:
    """Emit the update; parts of parameters are gathered afterwards."""
    moments = [_at_hand(b, f"{p.name}.{moment}") for moment in ("m", "v") for p in parameters]
    trained = [_at_hand(b, p.trained) for p in parameters]
    copied = [_copy(b, p) for p in parameters]
    copies = [name for name in copied if name]
    reads = [name for name in copies if b.buffers[name].persistent]
    b.op(
        "adamw",
        "adamw",
        [*grads, *moments, *trained, *reads],
        [*moments, *trained, *copies],
        parameters=tuple(p.name for p in parameters),
        decays=tuple(p.decays for p in parameters),
        copied=tuple(map(bool, copied)),
        part=owner,
    )
    updated = [copy or part for copy, part in zip(copied, trained, strict=True)]
    pairs = [(p.name, part) for p, part in zip(parameters, updated, strict=True) if p.apart]
    if pairs:
        whole, parts = zip(*pairs, strict=True)
        gathered = "params.gather", "all_gather", parts, whole
        b.collective(*gathered, *b.sharding.over, part=owner, purpose=PARAMETER_GATHER)


def _copy(b: Builder, parameter: Parameter) -> str:
    """Where AdamW puts what it trained in the compute precision, if it trains in another."""
    if b.dtype != "bf16":
        return ""
    if not parameter.apart:
        return parameter.name
    shape = b.buffers[parameter.trained].shape
    return b.of_parameter(parameter, f"{parameter.name}.updated", shape, b.dtype, "workspace")


def _to_device(b: Builder, owner: Part, parameters: Owned) -> None:
    states = _away(b, parameters)
    for name in states:
        state = b.buffers[name]
        here = replace(state, name=_at_hand(b, name), role="optimizer", persistent=False)
        b.add(replace(here, replicas=1))
    _move(b, owner, "to_device", states, [_at_hand(b, name) for name in states])


def _to_host(b: Builder, owner: Part, parameters: Owned) -> None:
    """Emit the copy back. `stored`, of no bytes, is what waits for it can name."""
    states = _away(b, parameters)
    stored = b.tensor(f"{owner}.stored", (0,), b.wide, role="workspace")
    _move(b, owner, "to_host", [_at_hand(b, name) for name in states], [*states, stored])


def _move(b: Builder, owner: Part, kind: str, reads: list[str], writes: list[str]) -> None:
    nbytes = sum(map(b.nbytes, reads))
    b.op(kind, kind, reads, writes, nbytes=nbytes, part=owner)
    b.ops[-1] = replace(b.ops[-1], stream=kind)


def _away(b: Builder, parameters: Owned) -> list[str]:
    """The states of some parameters that live in the host's memory."""
    every = [name for p in parameters for name in (f"{p.name}.m", f"{p.name}.v", p.trained)]
    return [name for name in every if b.buffers[name].role == HOST]


def _at_hand(b: Builder, state: str) -> str:
    """The name under which AdamW finds a state."""
    return f"{state}.staged" if b.buffers[state].role == HOST else state
