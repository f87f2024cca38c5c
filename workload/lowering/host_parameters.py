"""Parameters in the host's memory, `offload=parameters`: each rank's shard of a weight is copied to
the device before each all-gather, and gradient sums are kept on the host.

A shard is copied in the precision in which it is kept: fp32 if it is the master copy itself. If
weights are gathered ahead, their copies are issued with the gathers. A micro-batch's gradient is
reduced on the device (over replicas too), the sum is copied from the host, added to, and copied
back; some stacks add on the host instead. At most `IN_FLIGHT` such copies are outstanding.
Parameters that are not sharded (norms, most biases) stay on the device with their gradients.

Sources: deepspeedai/DeepSpeed@edaa722, runtime/zero/partition_parameters.py (all_gather_coalesced
copies each `ds_tensor` to the device) and stage3.py (partition_grads: "adding directly to cpu is
very slow"; persistent parameters); pytorch/pytorch, torch/distributed/fsdp/_fully_shard/
_fsdp_param.py (all_gather_inputs) and _fsdp_collectives.py (foreach_reduce: all-reduced over
copies, then copied, then added on the host). Not modelled: that DeepSpeed sends a step's last sums
twice, in the dtype of sums and in fp32, and keeps both on the host; that FSDP keeps norms on the
host too; that FSDP's host waits for a copy before it adds.
"""

from __future__ import annotations

from dataclasses import replace

from workload.lowering.builder import Builder
from workload.op import GRADIENT_SEND, HOST, HOST_STREAM, WEIGHT_FETCH, Buffer

IN_FLIGHT = 4  # sums on their way to the host: those of a layer


def is_away(b: Builder, name: str) -> bool:
    """Whether a buffer is in the host's memory."""
    return b.buffers[name].role == HOST


def fetched(b: Builder, label: str, weight: str) -> str:
    """Emit the copy of a rank's part of a weight to the device; returns its name there."""
    own = b.buffers[weight]
    here = b.tensor(f"{label}.w.here", own.shape, own.dtype, role="gathered")
    _copy(b, f"{label}.fetch", "to_device", [weight], [here], WEIGHT_FETCH)
    return here


def add_to_sum(
    b: Builder, name: str, parameter: str, part: str, *, first: bool, purpose: str
) -> None:
    """Emit the addition of a rank's part of a gradient to the sum on the host, which the `first`
    one begins."""
    grad = f"{parameter}.grad"
    of = b.buffers[grad]
    begins = first and not b.adds
    if b.held.sharded_masters and not begins:
        cast = b.tensor(f"{name}.dw.sum", of.shape, of.dtype, role="workspace")
        b.op(f"{name}.grad.accumulate", "accumulate", [part], [cast], purpose=purpose, first=True)
        came = b.add(replace(of, name=b.name(f"{name}.dw.host"), persistent=False))
        _send(b, name, cast, came)
        b.op(f"{name}.grad.add", "host_add", [grad, came], [grad], purpose=GRADIENT_SEND)
        b.ops[-1] = replace(b.ops[-1], stream=HOST_STREAM)
        return
    total, before = b.tensor(f"{name}.dw.sum", of.shape, of.dtype, role="workspace"), list[str]()
    if not begins:
        _copy(b, f"{name}.grad.sum.fetch", "to_device", [grad], [total])
        before = [total]
    operands = [part, *before], [total]
    b.op(f"{name}.grad.accumulate", "accumulate", *operands, purpose=purpose, first=begins)
    _send(b, name, total, grad)


def _send(b: Builder, name: str, total: str, grad: str) -> None:
    """Emit a copy to the host, and have compute wait for an earlier one."""
    sent = b.tensor(f"{name}.dw.sent", (0,), b.wide, role="workspace")
    _copy(b, f"{name}.grad.send", "to_host", [total], [grad, sent], GRADIENT_SEND)
    b.sent.append(sent)
    if len(b.sent) > IN_FLIGHT:
        awaited = [b.sent.pop(0)]
        b.op(f"{name}.grad.fence", "fence", awaited, [], nbytes=0, purpose=GRADIENT_SEND)


def squares(b: Builder, gradients: list[str], shares: tuple[float, ...], norm: str) -> None:
    """Emit the sum of squares of gradients on the host, and its addition to that of others."""
    there = b.add(Buffer("norm.square.host", (1,), b.wide, HOST))
    b.op("norm.squares.host", "host_square_sum", gradients, [there], shares=shares)
    b.ops[-1] = replace(b.ops[-1], stream=HOST_STREAM)
    came = b.tensor("norm.square.came", (1,), b.wide, role="workspace")
    _copy(b, "norm.square.fetch", "to_device", [there], [came])
    b.op("norm.square.add", "add", [norm, came], [norm])


def _copy(
    b: Builder, label: str, kind: str, reads: list[str], writes: list[str], purpose: str = ""
) -> None:
    nbytes = sum(map(b.nbytes, reads))
    b.op(label, kind, reads, writes, nbytes=nbytes, purpose=purpose)
    b.ops[-1] = replace(b.ops[-1], stream=kind)
