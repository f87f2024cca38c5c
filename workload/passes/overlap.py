"""AxoNN's overlaps as passes: each moves or retags ops, none touches an interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from workload.naming import op_name
from workload.op import (
    ADD_SCATTERED,
    BACKWARD,
    BUCKET_REDUCE,
    BUCKET_SCATTER,
    COMPUTE,
    FORWARD,
    GRAD_SCATTER,
    INPUT_GRAD,
    INPUT_GRAD_REDUCE,
    NONE,
    PARAMETER_GATHER,
    SOURCE_GATHER,
    STEP,
    WEIGHT_GATHER,
    WEIGHT_GRAD,
    Block,
    Buffer,
    Op,
)
from workload.plan import Plan
from workload.schedule import Slot

BESIDE = (INPUT_GRAD_REDUCE, SOURCE_GATHER)  # collectives of OAR
Chain = tuple[int, str, Block | None]


def overlap_slot(ops: Sequence[Op], plan: Plan) -> list[Op]:
    """Apply to a slot's ops the overlaps within it that the plan switches on."""
    result = list(ops)
    if "oar" in plan.overlap:
        result = overlap_input_gradient_reduces(result)
    if "ors" in plan.overlap:
        result = defer_reduce_scatters(result)
    if "oag" in plan.overlap:
        result = gather_ahead(result)
    return follow_up_later(result, _is_scatter)


def overlap_step(
    ops: Sequence[Op], plan: Plan, buffers: Mapping[str, Buffer], slot_of: Mapping[Block, Slot]
) -> list[Op]:
    """Apply to a whole step's ops the overlaps across its slots that the plan switches on."""
    if "dp" not in plan.overlap:
        return list(ops)
    result = overlap_parameter_gathers(bucket_gradient_reduces(ops, buffers, slot_of))
    return _where_issued(follow_up_later(result, _is_bucket_reduce))


def switch_of(op: Op) -> str:
    """The switch of `overlap` that put an op on a stream of its own; "" where none did."""
    if op.stream == COMPUTE or not op.is_collective:
        return ""
    if op.purpose in BESIDE:
        return "oar"
    if _is_scatter(op):
        return "ors"
    return "oag" if op.purpose == WEIGHT_GATHER else "dp"


def _is_bucket_reduce(op: Op) -> bool:
    """Whether an op sums the gradients of one part of the model."""
    return op.purpose == BUCKET_REDUCE and bool(op.part.kind)


def _where_issued(ops: Sequence[Op]) -> list[Op]:
    """A bucket's all-reduce belongs to the block behind whose ops it is issued."""
    result: list[Op] = []
    block = STEP
    for op in ops:
        if _is_bucket_reduce(op):
            result.append(replace(op, block=block))
        else:
            result.append(op)
            block = block if op.is_message or op.kind == "fence" else op.block
    return result


def overlap_input_gradient_reduces(ops: Sequence[Op]) -> list[Op]:
    """OAR: the all-reduce of dI runs beside the weight-gradient matmul issued right after it.

    Where rows are split over x it is a reduce-scatter, and the all-gather of the linear's input
    runs beside the matmul of dI before. Source: Megatron-LM, tensor_parallel/layers.py.
    """
    return [_on_own_stream(op) if op.purpose in BESIDE else op for op in ops]


def defer_reduce_scatters(ops: Sequence[Op]) -> list[Op]:
    """ORS: reduce-scatters run beside the backward pass and are awaited at its end.

    The additions to the gradients, which wait for them, move behind the micro-batch's last op.
    Where no all-reduce of dI gives cover, dW is computed first so that its scatter starts earlier.
    Source: AxoNN, intra_layer/fully_connected.py.
    """
    result: list[Op] = []
    deferred: list[Op] = []
    micro_batch = NONE
    for op in _weight_gradients_first(ops):
        current = op.block.micro_batch
        if current != micro_batch:
            result += deferred
            deferred, micro_batch = [], current
        if _is_scatter(op):
            result.append(_on_own_stream(op))
        elif op.purpose == ADD_SCATTERED:
            deferred.append(op)
        else:
            result.append(op)
    return result + deferred


def _weight_gradients_first(ops: Sequence[Op]) -> list[Op]:
    result = list(ops)
    for index in range(len(result) - 2):
        purposes = [op.purpose for op in result[index : index + 3]]
        if purposes == [INPUT_GRAD, WEIGHT_GRAD, GRAD_SCATTER]:
            first, second, third = result[index : index + 3]
            result[index : index + 3] = [second, third, first]
    return result


def bucket_gradient_reduces(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], slot_of: Mapping[Block, Slot]
) -> list[Op]:
    """dp: in the last micro-batch each block's gradients are summed over data once they are final.

    Where reduce-scatters are deferred, a block's additions and its bucket come one block of its
    slot later, so that the scatters have that long to finish without holding up the compute stream.
    """
    whole = [op for op in ops if op.purpose in (BUCKET_SCATTER, BUCKET_REDUCE)]
    if not whole:
        return list(ops)
    last = next(op for op in reversed(ops) if op.block != STEP).block.micro_batch
    final = [op for op in ops if op.kind == "accumulate" and op.block.micro_batch == last]
    chain = list(dict.fromkeys(op.block for op in final))
    deferred = any(_is_scatter(op) and op.stream != COMPUTE for op in ops)
    final_block = {op.writes[0]: op.block for op in final}
    after: dict[Block, list[Op]] = {block: [] for block in chain}
    for block, following in zip(chain, [*chain[1:], chain[-1]], strict=True):
        later = deferred and slot_of[block] == slot_of[following]
        place = following if later else block
        target = after[place]
        if deferred:
            target += [op for op in final if op.block == block]
        grads = [grad for grad, owner in final_block.items() if owner == block]
        if grads:
            target += [replace(_bucket(op, grads, buffers), block=place) for op in whole]
    gone = {op.name for op in whole} | ({op.name for op in final} if deferred else set())
    rest = [op for op in ops if op.name not in gone]
    ends = {op.block: index for index, op in enumerate(rest)}
    closing = {ends[block]: added for block, added in after.items()}
    return [new for index, op in enumerate(rest) for new in (op, *closing.get(index, ()))]


def _is_scatter(op: Op) -> bool:
    return op.purpose == GRAD_SCATTER


def _bucket(whole: Op, grads: Sequence[str], buffers: Mapping[str, Buffer]) -> Op:
    """The part of a collective on all gradients, or on the shards of all, that is on these."""
    part = buffers[grads[0]].part
    place = {buffers[name].parameter: at for at, name in enumerate(whole.reads)}
    chosen = [place[buffers[grad].parameter] for grad in grads]
    reads = tuple(whole.reads[at] for at in chosen)
    writes = tuple(whole.writes[at] for at in chosen)
    nbytes = sum(buffers[name].nbytes for name in reads)
    name = op_name(NONE, part, whole.label)
    own = replace(whole, name=name, part=part, reads=reads, writes=writes, nbytes=nbytes)
    return _on_own_stream(own)


def overlap_parameter_gathers(ops: Sequence[Op]) -> list[Op]:
    """dp: an owner's updated parameters are gathered beside the next owner's AdamW."""
    return [_on_own_stream(op) if op.purpose == PARAMETER_GATHER else op for op in ops]


def follow_up_later(ops: Sequence[Op], is_second: Callable[[Op], bool]) -> list[Op]:
    """A gradient's second collective is issued behind the next gradient's first one.

    `is_second` says which ops may be such. By then its input has had time to come, so that issuing
    it holds up nobody. It is issued sooner where somebody needs what it makes.
    """
    result: list[Op] = []
    stream_of: dict[str, str] = {}
    held: list[Op] = []
    for op in ops:
        if _concern(held, op):
            result += held
            held.clear()
        second = op.stream != COMPUTE and is_second(op)
        first = stream_of.get(op.reads[0], COMPUTE) if second else COMPUTE
        if first not in (COMPUTE, op.stream):
            held.append(op)
            continue
        result.append(op)
        stream_of.update(dict.fromkeys(op.writes, op.stream))
        if held and op.kind == "reduce_scatter" and op.stream == stream_of[held[0].reads[0]]:
            result += held
            held.clear()
    return result + held


def _concern(held: Sequence[Op], op: Op) -> bool:
    if not held:
        return False
    touched = {*op.reads, *op.writes}
    return any(touched & {*each.reads, *each.writes} for each in held)


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
    previous: dict[Chain, Op] = {}
    before: dict[int, list[Op]] = {}
    result: list[Op] = []
    stays: dict[int, Op] = {}
    for index, op in enumerate(ops):
        if op.purpose != WEIGHT_GATHER:
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


def _chain(gather: Op) -> Chain:
    block = gather.block
    if block.is_recomputed and not block.deferred:
        return block.micro_batch, block.phase, block
    return block.micro_batch, BACKWARD if block.phase == BACKWARD else FORWARD, None


def _on_own_stream(op: Op) -> Op:
    return replace(op, stream="+".join(op.axes))
