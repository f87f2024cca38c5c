"""Activations in the host's memory between the forward and the backward pass, as a pass over the
ops of a program: `offload=activations`.

What a layer's backward pass reads of its forward pass, its input included, is copied to the host
after that forward pass, and back while the backward pass of the next layer runs, which comes
first; each direction has its own stream. Compute waits for a layer's copy at the end of the next
layer's forward pass, so that at most two layers' activations are on the device. Those of the last
layer, which are needed at once, stay on the device. Under recomputation only what it starts from is
copied: with `recompute=full` a layer's input.

Sources: NVIDIA/TransformerEngine, pytorch/cpu_offload.py (`cpu_offloading_num_layers`, fewer than
there are layers; two streams); pytorch/torchtune, training/_activation_offloading.py (a stream of
copies each way; no more than a few tensors in flight). Not modelled: which tensors a framework
leaves on the device since they are small, and modules by name (Megatron-Core's
--fine-grained-activation-offloading).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from workload.naming import op_name
from workload.op import COMPUTE, FORWARD, HOST, Block, Buffer, Op, Part, altered

Buffers = dict[str, Buffer]
Place = tuple[int, Part]  # a micro-batch, and a layer
ACTIVATIONS = "activations"  # in a plan's `offload`
OUT, BACK = "to_host", "to_device"  # kinds of ops, and their streams


def on_host(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], following: Mapping[Part, Part]
) -> tuple[list[Op], Buffers]:
    """The ops with copies of activations to the host and back, and the buffers that are new.
    `following` has the layer that comes behind each layer but the last ones."""
    moved, ends, begins = _moved(ops, buffers, following)
    added: Buffers = {}
    behind: dict[int, list[Op]] = {}
    before: dict[int, list[Op]] = {}
    for place, names in moved.items():
        out, back = _copies(ops[ends[place]], ops[begins[place]], names, buffers, added)
        behind.setdefault(ends[place], []).append(out)
        later = place[0], following[place[1]]
        behind.setdefault(ends[later], []).append(_fence(ops[ends[later]], out))
        before.setdefault(begins[later], []).append(back)
    result: list[Op] = []
    for at, op in enumerate(ops):
        result += [*before.get(at, ()), _renamed(op, moved), *behind.get(at, ())]
    return result, added


def _moved(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], following: Mapping[Part, Part]
) -> tuple[dict[Place, list[str]], dict[Place, int], dict[Place, int]]:
    """What each layer but the last moves; where each layer's forward pass ends, and where the rest
    of its work begins."""
    ends: dict[Place, int] = {}
    begins: dict[Place, int] = {}
    used: dict[str, int] = {}  # the last op of a forward pass that touches it
    readers: dict[str, dict[Place, None]] = {}
    for at, op in enumerate(ops):
        place = op.block.micro_batch, op.block.part
        if op.block.phase == FORWARD:
            used |= dict.fromkeys((*op.reads, *op.writes), at)
            if op.block.part.is_layer:
                ends[place] = at
        elif op.block.part.is_layer:
            begins.setdefault(place, at)
        if op.block.phase != FORWARD:
            for name in op.reads:
                readers.setdefault(name, {})[place] = None
    found: dict[Place, list[str]] = {
        (m, part): [] for m, part in ends if (m, following.get(part)) in ends
    }
    for name, places in readers.items():
        (first, *more) = places
        if more or first not in found or name not in used:
            continue
        if buffers[name].role == "activations" and used[name] <= ends[first]:
            found[first].append(name)
    return {place: names for place, names in found.items() if names}, ends, begins


def _copies(
    end: Op, begin: Op, names: Sequence[str], buffers: Mapping[str, Buffer], added: Buffers
) -> tuple[Op, Op]:
    """The copies of a layer's activations to the host and back."""
    there, here = [f"{name}.away" for name in names], [_back(name) for name in names]
    for name, away, back in zip(names, there, here, strict=True):
        added[away] = replace(buffers[name], name=away, role=HOST)
        added[back] = replace(buffers[name], name=back)
    sent = op_name(end.block.micro_batch, end.block.part, "offload.sent")
    added[sent] = Buffer(sent, (0,), "uint8", "workspace")
    out = _copy(end, OUT, names, [*there, sent], buffers, added)
    return out, _copy(begin, BACK, there, here, buffers, added)


def _back(name: str) -> str:
    """The name of what comes back."""
    return f"{name}.back"


def _copy(
    beside: Op,
    kind: str,
    reads: Sequence[str],
    writes: Sequence[str],
    buffers: Mapping[str, Buffer],
    added: Mapping[str, Buffer],
) -> Op:
    """A copy on the stream of its kind, in the block of an op."""
    nbytes = sum((added.get(name) or buffers[name]).nbytes for name in reads)
    return _op(beside, f"offload.{kind}", kind, reads, writes, nbytes, kind)


def _fence(beside: Op, out: Op) -> Op:
    """What compute waits at for a copy to the host."""
    return _op(beside, "offload.fence", "fence", [out.writes[-1]], [], 0, COMPUTE)


def _op(
    beside: Op,
    label: str,
    kind: str,
    reads: Sequence[str],
    writes: Sequence[str],
    nbytes: int,
    stream: str,
) -> Op:
    block: Block = beside.block
    name = op_name(block.micro_batch, block.part, label, recomputed=block.is_recomputed)
    return Op(
        name,
        kind,
        tuple(reads),
        tuple(writes),
        block=block,
        stream=stream,
        nbytes=nbytes,
        micro_batch=block.micro_batch,
        part=block.part,
        label=label,
    )


def _renamed(op: Op, moved: Mapping[Place, Sequence[str]]) -> Op:
    """The op on what came back, if it is one of a backward pass."""
    if op.block.phase == FORWARD:
        return op
    own = set(moved.get((op.block.micro_batch, op.block.part), ()))
    if not own.intersection((*op.reads, *op.writes)):
        return op
    reads, writes = (
        tuple(_back(name) if name in own else name for name in names)
        for names in (op.reads, op.writes)
    )
    return altered(op, reads=reads, writes=writes)
