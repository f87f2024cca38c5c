"""The update, owner by owner: gradients clipped, states brought and stored, parameters updated
as the plan's rule says (`workload/rules`).

States that live in the host's memory come to the device one owner ahead and go back behind, on
streams of their own. No owner's copies outlive the update of the next but one.
"""

from __future__ import annotations

from dataclasses import replace

from workload.lowering import host_share, host_update
from workload.lowering.builder import Builder
from workload.lowering.parameter import Parameter
from workload.lowering.updates.elementwise import at_hand
from workload.lowering.updates.table import EMITTED
from workload.op import HOST, Buffer, Part
from workload.rules.zeroth_order import SLOPES
from workload.splits.states import ON_HOST, PARAMETERS, UPDATE

Owned = list[Parameter]


def update(b: Builder) -> None:
    """Emit the update of every owner's parameters; a stage may have none."""
    owners = by_owner(b)
    if b.plan.training.offload in (UPDATE, PARAMETERS):
        chosen = host_share.on_host(b)
        parts = host_update.begin(b, _those(owners, chosen, there=True), _clip)
        _update_here(b, _those(owners, chosen, there=False))
        host_update.finish(b, owners, parts)
        return
    if b.plan.training.offload == "optimizer":
        _update_away(b, owners)
        return
    _update_here(b, owners)


def _those(owners: dict[Part, Owned], chosen: set[str], *, there: bool) -> dict[Part, Owned]:
    """The parameters that the host updates, or that it does not, by their owners."""
    found = {each: [p for p in own if (p.name in chosen) == there] for each, own in owners.items()}
    return {each: own for each, own in found.items() if own}


def _update_here(b: Builder, owners: dict[Part, Owned]) -> None:
    """The update of parameters whose states are on the device."""
    for group in _groups(b, owners):
        grads, start = [_clip(b, owner, owners[owner], []) for owner in group], len(b.ops)
        for owner, own in zip(group, grads, strict=True):
            _emit(b, owner, owners[owner], own)
        if b.held.temporaries and not b.rule.zeroth_order:
            _hold(b, start, [p for owner in group for p in owners[owner]])


def _update_away(b: Builder, owners: dict[Part, Owned]) -> None:
    """The update on states that come from the host and go back."""
    names = list(owners)
    if names:
        _to_device(b, names[0], owners[names[0]])
    for at, owner in enumerate(names):
        grads = _clip(b, owner, owners[owner], [f"{names[at - 2]}.stored"] if at > 1 else [])
        if at + 1 < len(names):
            _to_device(b, names[at + 1], owners[names[at + 1]])
        _emit(b, owner, owners[owner], grads)
        _to_host(b, owner, owners[owner])


def _emit(b: Builder, owner: Part, parameters: Owned, grads: dict[str, str]) -> None:
    for each in dict.fromkeys(p.update for p in parameters):
        own = [p for p in parameters if p.update is each]
        EMITTED[each.name](b, owner, own, [grads[p.name] for p in own])


def _hold(b: Builder, start: int, parameters: Owned) -> None:
    """Have the ops from `start` on, which update some parameters together, hold what the update
    makes of all of them before it writes any."""
    several = len({p.owner for p in parameters}) > 1
    trained = [b.buffers[p.trained] for p in parameters]
    elements = sum(each.elements * (each.count if several else 1) for each in trained)
    shape = (b.held.temporaries, elements)
    name = b.add(Buffer(f"{parameters[0].name}.temporary", shape, b.wide, "workspace"))
    own = [at for at in range(start, len(b.ops)) if not b.ops[at].communicates]
    first, last = own[0], own[-1]
    b.ops[first] = replace(b.ops[first], writes=(*b.ops[first].writes, name))
    b.ops[last] = replace(b.ops[last], reads=(*b.ops[last].reads, name))


def _copies_gradients(b: Builder) -> bool:
    """Whether the update works on copies of gradients; those in the host's memory need none."""
    here = b.plan.training.offload not in ON_HOST
    return here and b.held.copies_gradients(b.plan, wide=b.summed == b.wide)


def _groups(b: Builder, owners: dict[Part, Owned]) -> list[list[Part]]:
    """The owners whose gradients are clipped together, before all their updates: each by itself,
    unless the stack updates copies of gradients."""
    if not _copies_gradients(b):
        return [[owner] for owner in owners]
    if b.plan.zero < 3 or not b.held.sub_group:
        return [[*owners]]
    groups, elements = [list[Part]()], 0
    for owner, parameters in owners.items():
        if elements >= b.held.sub_group:
            groups.append([])
            elements = 0
        groups[-1].append(owner)
        elements += sum(b.buffers[p.trained].elements for p in parameters)
    return groups


def by_owner(b: Builder) -> dict[Part, Owned]:
    """The parameters that are updated at the end of the step, by their owners."""
    owners: dict[Part, Owned] = {}
    for parameter in b.at_end:
        owners.setdefault(parameter.owner, []).append(parameter)
    return owners


def _clip(b: Builder, owner: Part, parameters: Owned, after: list[str]) -> dict[str, str]:
    """Emit the clipping, if the rule clips, in place or into wide copies; returns the gradients
    that the update takes, by parameter."""
    grads = [p.reduced for p in parameters]
    if b.rule.zeroth_order:
        return {p.name: SLOPES for p in parameters}
    if b.rule.in_backward:
        return {p.name: p.reduced for p in parameters}
    clipped = [_clipped(b, p) for p in parameters]
    b.op("clip", "scale", ["clip.scale", *grads, *after], clipped, part=owner)
    return {p.name: name for p, name in zip(parameters, clipped, strict=True)}


def _clipped(b: Builder, p: Parameter) -> str:
    """Where a clipped gradient stands: in place if it is wide and the update copies none."""
    reduced = b.buffers[p.reduced]
    if reduced.dtype == b.wide and not _copies_gradients(b):
        return p.reduced
    return b.of_parameter(p, f"{p.reduced}.wide", reduced.shape, b.wide, "gradients")


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
