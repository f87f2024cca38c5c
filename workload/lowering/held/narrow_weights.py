"""Weights that are kept and gathered in 8 bits, `fp8_params`: weights of linears that multiply in
8 bits have no 16-bit copy.

The update trains fp32 master copies and casts them when it writes the weights; the largest values
that scales need are searched in the master copies. With a recipe a weight has one 8-bit copy, with
mxfp8 two (one for each direction of the sums), both of which are gathered. With a stack's own fp8 a
weight has one copy; on Hopper each rank also makes a transposed copy from what was gathered.

Sources: NVIDIA/Megatron-LM@d98e8a6, megatron/training/arguments.py (--fp8-param-gather) and
core/fp8_utils.py (quantize_param_shard: master copies are cast into parts of parameters);
core/optimizer/optimizer_config.py (reuse_grad_buf_for_mxfp8_param_ag: with mxfp8, 16 bits per
parameter are gathered, the size of two copies); NVIDIA/TransformerEngine, fp8_model_init. Not
modelled: casts as separate kernels, transposes after each update, and transposed copies of weights
that are whole only while they are gathered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from workload.kinds import MATMULS
from workload.lowering.builder import Builder
from workload.op import PARAMETER_GATHER, STEP, WEIGHT_CAST, WEIGHT_GATHER, Op, altered
from workload.recipes.table import FP8

UPDATES = ("adamw",)  # kinds of ops that write weights
Copies = dict[str, tuple[str, ...]]  # what stands for a weight, by its name: itself, and others


def with_narrow_weights(b: Builder, ops: Sequence[Op], *, transposes: bool) -> list[Op]:
    """The ops on weights of 8 bits, where the plan asks for these; with `transposes` weights that a
    rank holds whole have another copy."""
    if not b.plan.training.fp8_params:
        return list(ops)
    before = {name: buffer.nbytes for name, buffer in b.buffers.items()}
    cast = {op.reads[0]: op for op in ops if _is_cast(op) and op.reads[0] in b.parameters}
    copies = _of_recipe(b, cast) if cast else _of_stack(b, ops, transposes=transposes)
    own = {op.writes[0]: name for name, op in cast.items()}
    result = [_renamed(op, own) for op in ops if not (_is_cast(op) and op.reads[0] in cast)]
    return [_resized(b, op, copies, before) for op in result]


def _is_cast(op: Op) -> bool:
    return op.kind == "quantise" and op.purpose == WEIGHT_CAST


def _of_recipe(b: Builder, casts: Mapping[str, Op]) -> Copies:
    """Have the copies that casts made stand for weights: the first one is the weight itself."""
    found: Copies = {}
    for name, op in casts.items():
        first, *others = op.writes[: 2 * len(op.attributes["blocks"]) : 2]
        of = b.buffers[name]
        copy = b.buffers.pop(first)
        b.buffers[name] = replace(of, shape=copy.shape, dtype=copy.dtype)
        _narrow(b, f"{name}.updated", also=not others)
        found[name] = (name, *others)
    return found


def _of_stack(b: Builder, ops: Sequence[Op], *, transposes: bool) -> Copies:
    """Have weights of linears in fp8 be of fp8, and what is gathered of them."""
    parts = {op.writes[0]: op.reads[0] for op in ops if op.purpose == WEIGHT_GATHER}
    found: Copies = {}
    for op in ops:
        operands = op.reads[:2] if op.dtype == FP8 and op.kind in MATMULS else ()  # no bias
        for read in operands:
            name = parts.get(read, read)
            if name not in b.parameters:
                continue
            found[name] = (name,)
            for each in (name, read, f"{name}.updated"):
                _narrow(b, each)
            if transposes and name == read:
                b.add(replace(b.buffers[name], name=f"{name}.turned", parameter=""))
    return found


def _narrow(b: Builder, name: str, *, also: bool = True) -> None:
    if also and name in b.buffers:
        b.buffers[name] = replace(b.buffers[name], dtype=FP8)


def _renamed(op: Op, names: Mapping[str, str]) -> Op:
    if not any(name in names for name in (*op.reads, *op.writes)):
        return op
    reads, writes = (
        tuple(names.get(name, name) for name in operands) for operands in (op.reads, op.writes)
    )
    return altered(op, reads=reads, writes=writes)


def _resized(b: Builder, op: Op, copies: Copies, before: Mapping[str, int]) -> Op:
    """An op that writes weights, gathers them or looks for their largest values, with the bytes
    that these have now."""
    if op.purpose == WEIGHT_GATHER and b.buffers[op.writes[0]].dtype == FP8:
        return altered(op, nbytes=b.buffers[op.writes[0]].nbytes, dtype=FP8)
    if op.block != STEP:
        return op
    if op.kind == "amax" and op.reads[0] in copies:
        trained = b.parameters[op.reads[0]].trained
        more = b.buffers[trained].nbytes - before[op.reads[0]]
        return altered(op, reads=(trained, *op.reads[1:]), nbytes=op.nbytes + more)
    if op.kind not in UPDATES and op.purpose != PARAMETER_GATHER:
        return op
    counted = op.reads if op.kind in UPDATES else ()  # a gather's bytes are those of its writes
    writes = tuple(each for name in op.writes for each in copies.get(name, (name,)))
    now = sum(b.buffers[name].nbytes for name in (*counted, *writes))
    old = sum(before[name] for name in (*counted, *op.writes))
    return altered(op, writes=writes, nbytes=op.nbytes + now - old)
