"""dp: gradients are summed over data bucket by bucket, and parameters gathered owner by owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from workload.moving import follow_up_later, on_own_stream
from workload.naming import op_name
from workload.op import (
    ADD_SCATTERED,
    BUCKET_REDUCE,
    BUCKET_SCATTER,
    COMPUTE,
    GRAD_SCATTER,
    NONE,
    PARAMETER_GATHER,
    STEP,
    Block,
    Buffer,
    Op,
    altered,
)
from workload.pipeline.schedule import Slot


def overlap_data_parallelism(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], slot_of: Mapping[Block, Slot]
) -> list[Op]:
    """Sums of gradients run beside the last backward pass, gathers of updated parameters beside
    AdamW."""
    result = overlap_parameter_gathers(bucket_gradient_reduces(ops, buffers, slot_of))
    return _where_issued(follow_up_later(result, _is_bucket_reduce))


def _is_bucket_reduce(op: Op) -> bool:
    """Whether an op sums the gradients of one part of the model."""
    return op.purpose == BUCKET_REDUCE and bool(op.part.kind)


def _where_issued(ops: Sequence[Op]) -> list[Op]:
    """A bucket's all-reduce belongs to the block behind whose ops it is issued."""
    result: list[Op] = []
    block = STEP
    for op in ops:
        if _is_bucket_reduce(op):
            result.append(altered(op, block=block))
        else:
            result.append(op)
            block = block if op.is_message or op.kind == "fence" else op.block
    return result


def bucket_gradient_reduces(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], slot_of: Mapping[Block, Slot]
) -> list[Op]:
    """In the last micro-batch each block's gradients are summed over data once they are final.

    Where reduce-scatters are deferred, a block's additions and its bucket come one block of its
    slot later, so that the scatters have that long to finish without holding up the compute stream;
    not where that block ends before this one, as the embedding does whose layers' gradients of
    weights were put off.
    """
    whole = [op for op in ops if op.purpose in (BUCKET_SCATTER, BUCKET_REDUCE)]
    if not whole:
        return list(ops)
    last = next(op for op in reversed(ops) if op.block != STEP).block.micro_batch
    added = _additions(ops, whole, buffers, last)
    final = _by_block(added)
    chain = list(final)
    deferred = any(op.purpose == GRAD_SCATTER and op.stream != COMPUTE for op in ops)
    final_block = {op.writes[0]: op.block for op in added}
    summed: dict[Block, list[str]] = {block: [] for block in chain}
    for grad, block in final_block.items():
        summed[block].append(grad)
    sums = [(op, {buffers[name].parameter: at for at, name in enumerate(op.reads)}) for op in whole]
    after: dict[Block, list[Op]] = {block: [] for block in chain}
    named = Counter[str]()
    gone = {op.name for op in (*whole, *(added if deferred else ()))}
    rest = [op for op in ops if op.name not in gone]
    # Deferred additions to what is not summed stay behind the last op, whatever their block.
    staying = ADD_SCATTERED if deferred else None
    ends = _ends([op.block if op.purpose != staying else None for op in rest])
    for block, following in zip(chain, [*chain[1:], chain[-1]], strict=True):
        later = deferred and slot_of[block] == slot_of[following] and ends[block] < ends[following]
        place = following if later else block
        target = after[place]
        if deferred:
            target += final[block]
        buckets = [_bucket(op, place_of, summed[block], buffers) for op, place_of in sums]
        for bucket in filter(None, buckets):
            named[bucket.name] += 1
            target.append(_numbered(altered(bucket, block=place), named[bucket.name]))
    closing = {ends[block]: added for block, added in after.items()}
    return [new for index, op in enumerate(rest) for new in (op, *closing.get(index, ()))]


def _numbered(bucket: Op, number: int) -> Op:
    """The bucket with a name of its own, if it is not the first of its part: modules for further
    tokens belong to the same part as the classifier, and are final in blocks of their own."""
    if number == 1:
        return bucket
    return altered(bucket, name=f"{bucket.name}.{number}", label=f"{bucket.label}.{number}")


def _additions(
    ops: Sequence[Op], whole: Sequence[Op], buffers: Mapping[str, Buffer], micro_batch: int
) -> list[Op]:
    """The additions of a micro-batch to the gradients that are summed over ranks."""
    summed = {buffers[name].parameter for op in whole for name in op.reads}
    added = (op for op in ops if op.kind == "accumulate" and op.block.micro_batch == micro_batch)
    return [op for op in added if buffers[op.writes[0]].parameter in summed]


def _by_block(ops: Sequence[Op]) -> dict[Block, list[Op]]:
    """Ops by their blocks."""
    found: dict[Block, list[Op]] = {}
    for op in ops:
        found.setdefault(op.block, []).append(op)
    return found


def _ends(blocks: Sequence[Block | None]) -> dict[Block, int]:
    """The last place of each block."""
    found, last = dict[Block, int](), len(blocks) - 1
    following: Block | None = None
    for at, block in enumerate(reversed(blocks)):
        if block is not None and block is not following:  # mostly it is, and hashing takes longer
            found.setdefault(block, last - at)
            following = block
    return found


def _bucket(
    whole: Op, place: Mapping[str, int], grads: Sequence[str], buffers: Mapping[str, Buffer]
) -> Op | None:
    """The part of a collective on many gradients, or on the shards of many, that is on these; None
    where it sums none of them. `place` has where it has the gradient of each parameter."""
    known = [buffers[grad] for grad in grads if buffers[grad].parameter in place]
    if not known:
        return None
    part, chosen = known[0].part, [place[buffer.parameter] for buffer in known]
    reads = tuple(whole.reads[at] for at in chosen)
    writes = tuple(whole.writes[at] for at in chosen)
    nbytes = sum(buffers[name].nbytes for name in reads)
    name = op_name(NONE, part, whole.label)
    own = altered(whole, name=name, part=part, reads=reads, writes=writes, nbytes=nbytes)
    return on_own_stream(own)


def overlap_parameter_gathers(ops: Sequence[Op]) -> list[Op]:
    """An owner's updated parameters are gathered beside the next owner's AdamW."""
    return [on_own_stream(op) if op.purpose == PARAMETER_GATHER else op for op in ops]
