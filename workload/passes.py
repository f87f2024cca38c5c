"""AxoNN's overlaps as passes: each moves or retags ops, none touches an interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from workload.op import Buffer, Op
from workload.plan import Plan


def overlap_slot(ops: Sequence[Op], plan: Plan) -> list[Op]:
    """Apply to a slot's ops the overlaps within it that the plan switches on."""
    result = list(ops)
    if "oar" in plan.overlap:
        result = overlap_input_gradient_reduces(result)
    if "ors" in plan.overlap:
        result = defer_reduce_scatters(result)
    if "oag" in plan.overlap:
        result = gather_ahead(result)
    return result


def overlap_step(ops: Sequence[Op], plan: Plan, buffers: Mapping[str, Buffer]) -> list[Op]:
    """Apply to a whole step's ops the overlaps across its slots that the plan switches on."""
    if "dp" in plan.overlap and plan.data > 1:
        return bucket_gradient_reduces(ops, buffers)
    return list(ops)


def overlap_input_gradient_reduces(ops: Sequence[Op]) -> list[Op]:
    """OAR: the all-reduce of dI runs beside the weight-gradient matmul issued right after it.

    Where rows are split over x it is a reduce-scatter, and the all-gather of the linear's input
    runs beside the matmul of dI before. Source: Megatron-LM, tensor_parallel/layers.py.
    """
    beside = (".grad.reduce", ".grad.source.gather")
    return [_on_own_stream(op) if op.name.endswith(beside) else op for op in ops]


def defer_reduce_scatters(ops: Sequence[Op]) -> list[Op]:
    """ORS: reduce-scatters run beside the backward pass and are awaited at its end.

    The additions to the gradients, which wait for them, move behind the micro-batch's last op.
    Where no all-reduce of dI gives cover, dW is computed first so that its scatter starts earlier.
    Source: AxoNN, intra_layer/fully_connected.py.
    """
    result: list[Op] = []
    deferred: list[Op] = []
    micro_batch = ""
    for op in _weight_gradients_first(ops):
        current = op.block.partition(".")[0]
        if current != micro_batch:
            result += deferred
            deferred, micro_batch = [], current
        if op.name.endswith(".grad.scatter"):
            result.append(_on_own_stream(op))
        elif _adds_scattered(op):
            deferred.append(op)
        else:
            result.append(op)
    return result + deferred


def _weight_gradients_first(ops: Sequence[Op]) -> list[Op]:
    result = list(ops)
    for index in range(len(result) - 2):
        names = [op.name.rpartition(".")[2] for op in result[index : index + 3]]
        if names == ["input", "weight", "scatter"]:
            first, second, third = result[index : index + 3]
            result[index : index + 3] = [second, third, first]
    return result


def _adds_scattered(op: Op) -> bool:
    return op.kind == "accumulate" and op.reads[0].endswith(".shard")


def bucket_gradient_reduces(ops: Sequence[Op], buffers: Mapping[str, Buffer]) -> list[Op]:
    """dp: in the last micro-batch each block's gradients are all-reduced over data once final.

    Where reduce-scatters are deferred, a block's additions and its all-reduce come one block later,
    so that the scatters have that long to finish without holding up the compute stream.
    """
    whole = next(op for op in ops if op.name == "grads.reduce")
    last = next(op for op in reversed(ops) if op.block != whole.block).block.partition(".")[0]
    final = [op for op in ops if op.kind == "accumulate" and op.block.startswith(f"{last}.")]
    chain = list(dict.fromkeys(op.block for op in final))
    deferred = any(map(_adds_scattered, final)) and any(op.stream == "z" for op in ops)
    final_block = {op.writes[0]: op.block for op in final}
    after: dict[str, list[Op]] = {block: [] for block in chain}
    for block, following in zip(chain, [*chain[1:], chain[-1]], strict=True):
        target = after[following if deferred else block]
        if deferred:
            target += [op for op in final if op.block == block]
        grads = tuple(grad for grad, owner in final_block.items() if owner == block)
        if grads:
            target.append(_bucket(whole, grads, buffers))
    gone = {whole.name} | ({op.name for op in final} if deferred else set())
    rest = [op for op in ops if op.name not in gone]
    ends = {op.block: index for index, op in enumerate(rest)}
    closing = {ends[block]: added for block, added in after.items()}
    return [new for index, op in enumerate(rest) for new in (op, *closing.get(index, ()))]


def _bucket(whole: Op, grads: tuple[str, ...], buffers: Mapping[str, Buffer]) -> Op:
    owner = grads[0].partition(".")[0]
    nbytes = sum(buffers[grad].nbytes for grad in grads)
    name = f"{owner}.grads.reduce"
    return _on_own_stream(replace(whole, name=name, reads=grads, writes=grads, nbytes=nbytes))


def gather_ahead(ops: Sequence[Op]) -> list[Op]:
    """OAG: each weight gather is issued one linear ahead, beside that linear's matmul.

    Forward, backward and each recomputed layer are chains of their own: a chain's first gather has
    nothing to hide behind. Source: AxoNN (gathers run one module ahead in definition order, and
    anew within each recomputed block).
    """
    first_use: dict[str, int] = {}
    for index, op in enumerate(ops):
        for name in op.reads:
            first_use.setdefault(name, index)
    previous: dict[str, Op] = {}
    before: dict[int, list[Op]] = {}
    result: list[Op] = []
    stays: dict[int, Op] = {}
    for index, op in enumerate(ops):
        if op.kind != "all_gather" or not op.writes[0].endswith(".w.full"):
            continue
        chain = _chain(op)
        place = first_use[previous[chain].writes[0]] if chain in previous else index
        before.setdefault(place, []).append(_on_own_stream(op))
        stays[index] = op
        previous[chain] = op
    for index, op in enumerate(ops):
        result += before.get(index, [])
        if index not in stays:
            result.append(op)
    return result


def _chain(gather: Op) -> str:
    if gather.block.endswith("recompute"):
        return gather.block
    micro_batch = gather.block.partition(".")[0]
    return f"{micro_batch}.backward" if ".grad.gather" in gather.name else micro_batch


def _on_own_stream(op: Op) -> Op:
    return replace(op, stream="+".join(op.axes))
