"""The update, owner by owner: gradients clipped, states brought and stored, parameters updated
as the plan's rule says (`workload/rules`).

States that live in the host's memory come to the device one owner ahead and go back behind, on
streams of their own. No owner's copies outlive the update of the next but one.
"""

from __future__ import annotations

from dataclasses import replace

from workload.lowering.builder import Builder
from workload.lowering.parameter import Parameter
from workload.op import HOST, Part
from workload.rules.elementwise import at_hand
from workload.rules.zeroth_order import SLOPES

Owned = list[Parameter]


def update(b: Builder) -> None:
    """Emit the update of every owner's parameters; a stage may have none."""
    owners = by_owner(b)
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
        for each in dict.fromkeys(p.update for p in owners[owner]):
            own = [p for p in owners[owner] if p.update is each]
            each.emit(b, owner, own, [grads[p.name] for p in own])
        if away:
            _to_host(b, owner, owners[owner])


def by_owner(b: Builder) -> dict[Part, Owned]:
    """The parameters that are updated at the end of the step, by their owners."""
    owners: dict[Part, Owned] = {}
    for parameter in b.at_end:
        owners.setdefault(parameter.owner, []).append(parameter)
    return owners


def _clip(b: Builder, owner: Part, parameters: Owned, after: list[str]) -> dict[str, str]:
    """Emit the clipping, if the rule clips, in place or into wide copies; returns the gradients
    that the update takes, by parameter."""
    clipped = grads = [p.reduced for p in parameters]
    if b.rule.zeroth_order:
        return {p.name: SLOPES for p in parameters}
    if b.rule.in_backward:
        return {p.name: p.reduced for p in parameters}
    if b.summed != b.wide:
        clipped = [
            b.of_parameter(p, f"{p.reduced}.wide", b.buffers[p.reduced].shape, b.wide, "gradients")
            for p in parameters
        ]
    b.op("clip", "scale", ["clip.scale", *grads, *after], clipped, part=owner)
    return {p.name: name for p, name in zip(parameters, clipped, strict=True)}


def _to_device(b: Builder, owner: Part, parameters: Owned) -> None:
    states = _away(b, parameters)
    for name in states:
        state = b.buffers[name]
        here = replace(state, name=at_hand(b, name), role="optimizer", persistent=False)
        b.add(replace(here, replicas=1))
    _move(b, owner, "to_device", states, [at_hand(b, name) for name in states])


def _to_host(b: Builder, owner: Part, parameters: Owned) -> None:
    """Emit the copy back. `stored`, of no bytes, is what waits for it can name."""
    states = _away(b, parameters)
    stored = b.tensor(f"{owner}.stored", (0,), b.wide, role="workspace")
    _move(b, owner, "to_host", [at_hand(b, name) for name in states], [*states, stored])


def _move(b: Builder, owner: Part, kind: str, reads: list[str], writes: list[str]) -> None:
    nbytes = sum(map(b.nbytes, reads))
    b.op(kind, kind, reads, writes, nbytes=nbytes, part=owner)
    b.ops[-1] = replace(b.ops[-1], stream=kind)


def _away(b: Builder, parameters: Owned) -> list[str]:
    """The states of some parameters that live in the host's memory."""
    every = [name for p in parameters for name in p.states]
    return [name for name in every if b.buffers[name].role == HOST]
