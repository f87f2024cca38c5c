"""An update that runs on the host: gradients go to its memory, where AdamW's states and master
copies are and its processors update them, and the updated weights come back.

The update runs owner by owner. An owner's gradients are clipped on the device, in fp32, and copied
while the host updates the owners before it; its weights come back before the next owner's update
begins. At most two owners' clipped gradients are in flight. Where each rank updates a part of the
weights, these are gathered after all copies.

Sources: Ren et al., ZeRO-Offload (2101.06840), section 4; deepspeedai/DeepSpeed@edaa722,
runtime/zero/stage_1_and_2.py (async_inplace_copy_grad_to_fp32_buffer_from_gpu: gradients are made
fp32 on the device); NVIDIA/Megatron-LM@d98e8a6, core/optimizer/cpu_offloading/hybrid_optimizer.py
(a stream for copies to the host). Not modelled: that DeepSpeed copies gradients during the backward
pass and frees them, and has buffers of fp32 gradients in the host's memory all the time; that
Megatron-Core brings weights back in fp32, beside other updates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from workload.lowering.builder import Builder
from workload.lowering.parameter import Parameter
from workload.op import HOST, Buffer, Part
from workload.rules.adamw import STATES
from workload.rules.elementwise import gather_parts

UPDATE = "host_adamw"  # a kind of op, and the stream of such ops
Owned = list[Parameter]
Clip = Callable[[Builder, Part, Owned, list[str]], dict[str, str]]


def emit(b: Builder, owners: dict[Part, Owned], clip: Clip) -> None:
    """Emit the update of all owners' parameters, whose gradients `clip` clips."""
    names, parts = list(owners), list[tuple[Part, list[str]]]()
    for at, owner in enumerate(names):
        after = [f"{names[at - 2]}.sent"] if at > 1 else []
        grads = clip(b, owner, owners[owner], after)
        read = _sent(b, owner, owners[owner], [grads[p.name] for p in owners[owner]])
        parts.append((owner, _updated(b, owner, owners[owner], read)))
    back = [name for _, updated in parts for name in updated]
    if back:
        b.op("host.updated", "fence", back, [], nbytes=0)
    for owner, updated in parts:
        gather_parts(b, owner, owners[owner], updated)


def _sent(b: Builder, owner: Part, parameters: Owned, grads: list[str]) -> list[str]:
    """Emit the copy of gradients, and of what is trained where it has no copy on the host; returns
    the copies' names. The empty buffer `sent` is written last, for later ops to wait on."""
    trained = [p.trained for p in parameters if _is_here(b, p)]
    copies = [_on_host(b, name, f"{name}.host") for name in (*grads, *trained)]
    sent = b.tensor(f"{owner}.sent", (0,), b.wide, role="workspace")
    _move(b, owner, "to_host", [*grads, *trained], [*copies, sent], "to_host")
    return copies[: len(grads)]


def _updated(b: Builder, owner: Part, parameters: Owned, grads: list[str]) -> list[str]:
    """Emit the update on the host, and the copy of what it trained to the device; returns where
    that is."""
    states = [f"{p.name}.{state}" for state in STATES for p in parameters]
    trained = [f"{p.trained}.host" if _is_here(b, p) else p.trained for p in parameters]
    narrow = [b.dtype == "bf16" and not _is_here(b, p) for p in parameters]
    copies = [
        _on_host(b, p.trained, f"{p.name}.host_updated", b.dtype) if copied else name
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
    b.ops[-1] = replace(b.ops[-1], stream=UPDATE)
    back = [_back(b, p, name) for p, name in zip(parameters, copies, strict=True)]
    _move(b, owner, "to_device", copies, back, UPDATE)
    return back


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
    """Where the device gets what was trained: the parameter, or a part of it that is gathered."""
    if not p.apart:
        return p.name
    own = b.buffers[copy]
    return b.of_parameter(p, f"{p.name}.updated", own.shape, own.dtype, "workspace")


def _move(
    b: Builder, owner: Part, kind: str, reads: list[str], writes: list[str], stream: str
) -> None:
    b.op(kind, kind, reads, writes, nbytes=sum(map(b.nbytes, reads)), part=owner)
    b.ops[-1] = replace(b.ops[-1], stream=stream)
