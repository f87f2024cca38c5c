"""A layer that runs again but for chosen ops, whose outputs are kept.

That is PyTorch's selective activation checkpointing by torchtitan's policy. Kept are what
attention, reduce-scatters and all-to-alls give, and every second product with a weight, counted
through the layer; the router's is not counted, and grouped products of experts are none of them.
Queries, keys and values are three products, and gate and up two, though one op makes them here: a
part of its columns is kept then, and the others alone are made again. What nothing else reads does
not run again.

Source: pytorch/torchtitan@b5bcd76, torchtitan/distributed/activation_checkpoint.py (SelectiveAC);
pytorch/pytorch, torch/_functorch/partitioners.py (get_default_op_list).
Outputs that nothing reads are kept too where PyTorch does not compile (`Held.keeps_unread`).
Not modelled: a router's choices and largest values, which are kept too and small. Of products in
fp8 torchtitan's releases keep none or all; here it is half, as in bf16: its runs of 2024 take as
much as in bf16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topologies.records import record
from workload.dataflow import needed_for
from workload.lowering.builder import Builder
from workload.lowering.layers.mixers.table import every_mixer
from workload.op import Op, altered

COPIED = ("q_down", "kv_down")  # linears that each rank of x does alike
KEPT = ("attention", "batched_matmul", "reduce_scatter", "all_to_all")  # kinds of ops


@record
class Outputs:
    """The buffers that have what an op of a layer gave: all of it, or so many `columns`."""

    names: tuple[str, ...]
    columns: Any = 0


def keep(b: Builder, start: int) -> dict[str, Outputs]:
    """Add what is kept to the builder's ops from `start` on, a layer's forward pass; returns it by
    the labels of the ops."""
    bands, found, count = _bands(b), dict[str, Outputs](), 0
    for at in range(start, len(b.ops)):
        op = b.ops[at]
        whole, columns = op.kind in KEPT, 0
        if op.kind == "matmul" and op.label in bands:
            widths = bands[op.label]
            columns = sum(each for n, each in enumerate(widths) if (count + n) % 2 == 0)
            whole, count = columns == sum(widths), count + len(widths)
        if whole or columns:
            found[op.label] = _kept(b, at, 0 if whole else columns)
    return found


def again(b: Builder, start: int, kept: Mapping[str, Outputs]) -> None:
    """Rewrite the builder's ops from `start` on, a layer's recomputation and its backward pass, to
    take what is kept where it is read."""
    result, names = list[Op](), dict[str, str]()
    for op in b.ops[start:]:
        own = kept.get(op.label) if op.is_recomputed else None
        reads = tuple(names.get(name, name) for name in op.reads)
        if own is not None and not own.columns:
            names |= zip(op.writes, own.names, strict=True)
            continue
        for name in op.writes:
            names.pop(name, None)
        if own is not None:
            other = _of_other_columns(b, op, own.columns)
            result.append(altered(other, reads=(*reads, *own.names)))
        else:
            result.append(op if reads == op.reads else altered(op, reads=reads))
    backward = [op for op in result if not op.is_recomputed]
    needed = {name for op in backward for name in op.reads}
    made = needed_for(needed, [op for op in result if op.is_recomputed])
    if b.held.keeps_unread:
        read = {name for op in (*made, *backward) for name in op.reads}
        unread = [name for own in kept.values() for name in own.names if name not in read]
        backward[-1] = altered(backward[-1], reads=(*backward[-1].reads, *unread))
    b.ops[start:] = [*made, *backward]


def _bands(b: Builder) -> dict[str, tuple[int, ...]]:
    """The widths on a rank of the products that an op of a label stands for."""
    found = dict[str, tuple[int, ...]]()
    for each in (own for mixer in every_mixer(b.gpt) for own in mixer.products(b).values()):
        parts = 1 if each.name in COPIED else b.grid.size(each.n_axis)
        found[each.name] = tuple(width // parts for width in each.bands)
    return {f"{name}.matmul": widths for name, widths in found.items()}


def _kept(b: Builder, at: int, columns: Any) -> Outputs:
    """What is kept of an op: what it writes, or copies where that is a part or is overwritten."""
    op = b.ops[at]
    overwritten = {name for later in b.ops[at + 1 :] for name in later.writes}
    if columns:
        copies = [b.tensor(f"{op.label}.kept", (op.attributes["m"], columns))]
    elif overwritten.isdisjoint(op.writes):
        return Outputs(op.writes)
    else:
        copies = [
            b.tensor(f"{op.label}.kept.{n}", b.buffers[name].shape, b.buffers[name].dtype)
            for n, name in enumerate(op.writes)
        ]
    b.ops[at] = altered(op, writes=(*op.writes, *copies))
    return Outputs(tuple(copies), columns)


def _of_other_columns(b: Builder, op: Op, kept: Any) -> Op:
    """The product of the columns that are not kept."""
    m, n, k = op.mnk
    nbytes = op.nbytes - (m + k) * kept * b.item_bytes()
    how = {**op.attributes, "n": n - kept}
    return altered(op, attributes=how, flops=2 * m * (n - kept) * k, nbytes=nbytes)
