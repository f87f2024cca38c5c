"""The end of a step: gradients summed over ranks, their global norm, and the update."""

from __future__ import annotations

from workload.lowering.builder import Builder
from workload.lowering.layers import goldfish
from workload.lowering.layers import sequence_parallel as rows
from workload.lowering.parameter import Parameter
from workload.lowering.update import update
from workload.op import BUCKET_REDUCE, BUCKET_SCATTER, LOSS_REDUCE, NORM_REDUCE, STEP, Part
from workload.rules import zeroth_order


def finish(b: Builder, launches_of_slice: int = 0) -> None:
    """Emit everything between the last backward and the next step.

    A stack that handles the slices of weights one by one launches `launches_of_slice` kernels for
    each: as many slices of each weight as there are ranks of data.
    """
    b.block = STEP
    if b.rule.zeroth_order:
        zeroth_order.emit_slopes(b)
    else:
        _sum_gradients(b)
        sum_loss(b)
    if b.rule.sums_gradients:
        _clip(b)
    update(b)
    if launches_of_slice and b.grid.data > 1:
        _handle_slices(b, launches_of_slice * b.grid.data)


def sum_loss(b: Builder) -> None:
    """Emit the sum of the loss over tokens and stages, of which the last alone has one."""
    if b.stage < b.grid.pipe - 1:
        b.op("loss.zero", "zero", [], [goldfish.total(b)])
    axes = *b.shards_of("tokens"), *b.shards_of("layers")
    b.all_reduce("loss.reduce", goldfish.total(b), *axes, purpose=LOSS_REDUCE)


def _sum_gradients(b: Builder) -> None:
    """What is left to sum: over S (zero=1) and over the copies; small ones over all tokens."""
    sharded = [p for p in b.at_end if p.sharded]
    if sharded:
        _sum_sharded(b, sharded)
    if b.gpt.tied and b.grid.pipe > 1 and b.stage in (0, b.grid.pipe - 1):
        b.all_reduce("tied.reduce", b.parameters["embed.w"].reduced, "ends")
    _sum_small(b)


def _sum_sharded(b: Builder, sharded: list[Parameter]) -> None:
    grads, reduced = [f"{p.name}.grad" for p in sharded], [p.reduced for p in sharded]
    if reduced != grads:
        for p in sharded:
            shape, dtype = b.buffers[p.trained].shape, b.buffers[f"{p.name}.grad"].dtype
            b.of_parameter(p, p.reduced, shape, dtype, role="gradients")
        over = b.sharding.over
        scattered = "grads.scatter", "reduce_scatter", grads, reduced
        b.collective(*scattered, *over, purpose=BUCKET_SCATTER)
    if b.grid.size(*b.sharding.copies) > 1:
        summed = "grads.reduce", "all_reduce", reduced, reduced
        b.collective(*summed, *b.sharding.copies, purpose=BUCKET_REDUCE)


def _sum_small(b: Builder) -> None:
    small = [f"{p.name}.grad" for p in b.at_end if not p.sharded]
    partial = [name for name in small if rows.parts(b) > 1 and not _is_split_over_rows(b, name)]
    small = [name for name in small if name not in partial]
    rows_of_x, tokens = b.shards_of("rows"), b.shards_of("tokens")
    if partial:
        b.collective("rows.reduce", "all_reduce", partial, partial, *rows_of_x, *tokens)
    if small and b.grid.size(*tokens) > 1:
        b.collective("small.reduce", "all_reduce", small, small, *tokens)


def _handle_slices(b: Builder, count: int) -> None:
    """Kernels for the slices of each weight, whose bytes the update has."""
    numbers: dict[Part, int] = {}
    for p in b.parameters.values():
        numbers[p.owner] = number = numbers.get(p.owner, 0) + 1
        b.op(f"slices.{number}", "launches", [], [], nbytes=0, part=p.owner, count=count)


def _is_split_over_rows(b: Builder, grad: str) -> bool:
    """Whether ranks with other rows hold other parts; otherwise each has summed its own rows."""
    rows_of_x = set(b.shards_of("rows"))
    return any(rows_of_x & set(axes) for axes in b.layouts[b.buffers[grad].parameter].split)


def _clip(b: Builder) -> None:
    """The norm counts each gradient once: copies share its square among them. A stage without
    parameters adds nothing to it."""
    parameters = list(b.parameters.values())
    norm = b.tensor("norm.square", (1,), b.wide, role="workspace")
    shares = tuple(1 / p.copies for p in parameters)
    if parameters:
        b.op("norm.squares", "square_sum", [p.reduced for p in parameters], [norm], shares=shares)
    else:
        b.op("norm.squares", "zero", [], [norm])
    whole = *b.shards_of("weights"), *b.sharding.over
    b.all_reduce("norm.reduce", norm, *whole, *b.shards_of("layers"), purpose=NORM_REDUCE)
    scale = b.tensor("clip.scale", (1,), b.wide, role="workspace")
    b.op("clip", "clip_scale", [norm, *goldfish.of_kept(b, norm)], [scale])
