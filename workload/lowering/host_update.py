"""An update on the host: gradients are copied to the host, which keeps AdamW's states and master
copies and updates them, and the updated weights are copied back. Parameters that are in the host's
memory with their gradients are clipped and updated there without copies.

The update runs owner by owner. An owner's gradients are clipped on the device, in fp32, and copied
while the host updates the owners before it; its weights are copied back before the next owner's
update begins. At most two owners' clipped gradients are in flight. If each rank updates a shard of
the weights, they are gathered after all copies.

Sources: Ren et al., ZeRO-Offload (2101.06840), section 4; deepspeedai/DeepSpeed@edaa722,
runtime/zero/stage_1_and_2.py (async_inplace_copy_grad_to_fp32_buffer_from_gpu: gradients are made
fp32 on the device); NVIDIA/Megatron-LM@d98e8a6, core/optimizer/cpu_offloading/hybrid_optimizer.py
(a stream for copies to the host). Not modelled: that DeepSpeed copies gradients during the backward
pass and frees them, and always keeps fp32 gradient buffers on the host; that Megatron-Core copies
weights back in fp32, in parallel with other updates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from workload.lowering.builder import Builder
from workload.lowering.host_parameters import is_away
from workload.lowering.parameter import Parameter
from workload.lowering.updates.elementwise import gather_parts
from workload.op import HOST, HOST_STREAM, Buffer, Part
from workload.rules.adamw import STATES

UPDATE = "host_adamw"
Owned = list[Parameter]
Clip = Callable[[Builder, Part, Owned, list[str]], dict[str, str]]


def begin(b: Builder, owners: dict[Part, Owned], clip: Clip) -> dict[str, str]:
    """Emit the update of owners' parameters, whose gradients `clip` clips; returns where what was
    trained of each parameter is then."""
    found, sent = dict[str, str](), list[str]()
    scale = _scale_there(b) if any(_is_there(b, p) for own in owners.values() for p in own) else ""
    for owner, every in owners.items():
        here = [p for p in every if not _is_there(b, p)]
        grads = dict[str, str]()
        if here:
            clipped = clip(b, owner, here, sent[-2:-1])
            copies = _sent(b, owner, here, [clipped[p.name] for p in here], sent)
            grads = dict(zip((p.name for p in here), copies, strict=True))
        grads |= _clipped_there(b, owner, [p for p in every if p not in here], scale)
        updated = _updated(b, owner, every, [grads[p.name] for p in every])
        found |= dict(zip((p.name for p in every), updated, strict=True))
    return found


def finish(b: Builder, owners: dict[Part, Owned], found: dict[str, str]) -> None:
    """Emit the wait for what the host updated, and its gathers."""
    back = [name for name in found.values() if not is_away(b, name)]
    if back:
        b.op("host.updated", "fence", back, [], nbytes=0)
    for owner, every in owners.items():
        own = [p for p in every if p.name in found]
        gather_parts(b, owner, own, [found[p.name] for p in own])


def _is_there(b: Builder, p: Parameter) -> bool:
    """Whether a parameter is in the host's memory with its gradient."""
    return is_away(b, p.name)


def _scale_there(b: Builder) -> str:
    """Emit the copy of what gradients are multiplied by to the host; returns its name there."""
    scale = _on_host(b, "clip.scale", "clip.scale.host")
    _move(b, None, "clip.to_host", "to_host", ["clip.scale"], [scale], "to_host")
    return scale


def _clipped_there(b: Builder, owner: Part, parameters: Owned, scale: str) -> dict[str, str]:
    """Emit the clipping of gradients on the host, in place or into wide copies; returns what the
    update takes, by parameter."""
    if not parameters:
        return {}
    grads = {p.name: _wide_there(b, p) for p in parameters}
    reads = [scale, *(p.reduced for p in parameters)]
    b.op("clip.host", "host_scale", reads, [*grads.values()], part=owner)
    b.ops[-1] = replace(b.ops[-1], stream=HOST_STREAM)
    return grads


def _wide_there(b: Builder, p: Parameter) -> str:
    """Where the host clips a gradient that it has."""
    if b.buffers[p.reduced].dtype == b.wide:
        return p.reduced
    return _on_host(b, p.reduced, f"{p.reduced}.wide", b.wide)


def _sent(
    b: Builder, owner: Part, parameters: Owned, grads: list[str], others: list[str]
) -> list[str]:
    """Emit the copy of gradients, and of what is trained where it has no copy on the host; returns
    the copies' names. An empty buffer is written last, which joins `others` to wait on."""
    trained = [p.trained for p in parameters if _is_here(b, p)]
    copies = [_on_host(b, name, f"{name}.host") for name in (*grads, *trained)]
    others.append(b.tensor(f"{owner}.sent", (0,), b.wide, role="workspace"))
    moved = [*grads, *trained], [*copies, others[-1]]
    _move(b, owner, "to_host", "to_host", *moved, "to_host")
    return copies[: len(grads)]


def _updated(b: Builder, owner: Part, parameters: Owned, grads: list[str]) -> list[str]:
    """Emit the update on the host, and the copy of what it trained to the device, unless that is a
    parameter of the host's memory; returns where that is."""
    states = [f"{p.name}.{state}" for state in STATES for p in parameters]
    trained = [f"{p.trained}.host" if _is_here(b, p) else p.trained for p in parameters]
    narrow = [b.dtype == "bf16" and p.trained != p.name and not _is_here(b, p) for p in parameters]
    copies = [
        _narrow_copy(b, p) if copied else name
        for p, name, copied in zip(parameters, trained, narrow, strict=True)
    ]
    own = [name for name, copied in zip(copies, narrow, strict=True) if copied]
    b.op(
        UPDATE,
        UPDATE,
        [*grads, *states, *trained],
        [*states, *trained, *own],
        parameters=tuple(p.name for p in parameters),
        decays=tuple(p.decays for p in parameters),
        copied=tuple(narrow),
        part=owner,
    )
    b.ops[-1] = replace(b.ops[-1], stream=HOST_STREAM)
    back = [_back(b, p, name) for p, name in zip(parameters, copies, strict=True)]
    moved = [pair for pair in zip(copies, back, strict=True) if not is_away(b, pair[1])]
    if moved:
        reads, writes = ([*names] for names in zip(*moved, strict=True))
        _move(b, owner, "to_device", "to_device", reads, writes, HOST_STREAM)
    return back


def _narrow_copy(b: Builder, p: Parameter) -> str:
    """Where the host writes a weight in the precision of training: the parameter, if it is there,
    or what is copied to the device."""
    return p.name if _is_there(b, p) else _on_host(b, p.trained, f"{p.name}.host_updated", b.dtype)


def _is_here(b: Builder, p: Parameter) -> bool:
    """Whether what is trained is on the device: a parameter that has no master copy."""
    return b.buffers[p.trained].role != HOST


def _on_host(b: Builder, name: str, copy: str, dtype: str = "") -> str:
    """A buffer in the host's memory, as large as another one, for the time of the update."""
    own = b.buffers[name]
    return b.add(
        Buffer(copy, own.shape, dtype or own.dtype, HOST, parameter=own.parameter, part=own.part)
    )


def _back(b: Builder, p: Parameter, copy: str) -> str:
    """Where what was trained ends: the parameter, or a part of it on the device, to be gathered."""
    if not p.apart:
        return p.name
    own = b.buffers[copy]
    return b.of_parameter(p, f"{p.name}.updated", own.shape, own.dtype, "workspace")


def _move(
    b: Builder,
    owner: Part | None,
    label: str,
    kind: str,
    reads: list[str],
    writes: list[str],
    stream: str,
) -> None:
    b.op(label, kind, reads, writes, nbytes=sum(map(b.nbytes, reads)), part=owner)
    b.ops[-1] = replace(b.ops[-1], stream=stream)
