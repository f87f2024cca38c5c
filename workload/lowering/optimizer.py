"""The end of a step: gradients summed over ranks, their global norm, and the update."""

from __future__ import annotations

from workload.grid import OPPOSITE
from workload.lowering import host_parameters
from workload.lowering.builder import Builder
from workload.lowering.layers import goldfish, vocabulary
from workload.lowering.layers import sequence_parallel as rows
from workload.lowering.layers.mixers.experts import balance
from workload.lowering.parameter import Parameter
from workload.lowering.sharding import Sharding
from workload.lowering.update import update
from workload.lowering.updates import zeroth_order
from workload.op import (
    BUCKET_REDUCE,
    BUCKET_SCATTER,
    FEED_FORWARD,
    LOSS_REDUCE,
    MIXER,
    NORM_REDUCE,
    STEP,
    Part,
)


def finish(b: Builder, launches_of_slice: int = 0) -> None:
    """Emit everything between the last backward and the next step.

    A stack that handles the slices of weights one by one launches `launches_of_slice` kernels for
    each: as many slices of each weight as there are ranks of data.
    """
    b.block = STEP
    if b.once_a_step and b.gathered:
        _drop_gathered(b)
    if b.rule.zeroth_order:
        zeroth_order.emit_slopes(b)
    else:
        _sum_gradients(b)
        sum_loss(b)
    if b.rule.sums_gradients:
        _clip(b)
    update(b)
    balance.move_biases(b)
    if launches_of_slice and b.grid.dp > 1:
        _handle_slices(b, launches_of_slice * b.grid.dp)


def _drop_gathered(b: Builder) -> None:
    """Emit the end of weights that no pass over a micro-batch has dropped: none goes before."""
    b.op("reshard", "launches", list(b.gathered.values()), [], nbytes=0, count=0)


def sum_loss(b: Builder) -> None:
    """Emit the sum of the loss over tokens and stages, of which that with the head has one."""
    if not b.has_head:
        b.op("loss.zero", "zero", [], [goldfish.total(b)])
    balance.add_loss(b, goldfish.total(b))
    axes = *b.shards_of("tokens"), *b.shards_of("layers")
    b.all_reduce("loss.reduce", goldfish.total(b), *axes, purpose=LOSS_REDUCE)


def _sum_gradients(b: Builder) -> None:
    """What is left to sum: over S (zero=1) and over the copies; small ones over all tokens. Where
    micro-batches pass the stages in two directions, then over the two copies of the model, each
    of which has seen half of the step's tokens: a rank and that at its place in the opposite
    stage hold the same parts, in the same order.

    Source: deepseek-ai/DualPipe, examples/example_dualpipe.py, which sums them behind the step too.
    """
    for how in dict.fromkeys(p.sharding for p in b.at_end if p.sharded):
        _sum_sharded(b, [p for p in b.at_end if p.sharded and p.sharding == how])
    on_both_ends = vocabulary.head_has_embedding(b) and b.head_stage > 0
    if on_both_ends and b.stage in (0, b.head_stage):
        b.all_reduce("tied.reduce", b.parameters["embed.w"].reduced, "ends")
    _sum_small(b)
    if b.copies > 1:
        summed = [p.reduced for p in b.at_end]
        b.collective("copies.reduce", "all_reduce", summed, summed, OPPOSITE)


def _sum_sharded(b: Builder, sharded: list[Parameter]) -> None:
    if b.away:  # each micro-batch's are summed over all ranks before they go to the host
        return
    how = sharded[0].sharding
    of_experts = b.sharding_of_experts == how != b.sharding
    named = {b.sharding_of_experts: "experts.grads", b.sharding: "grads"}
    label = named.get(how, "rows.grads")
    with b.within(FEED_FORWARD if of_experts else MIXER):
        _sum_over(b, sharded, label, how)


def _sum_over(b: Builder, sharded: list[Parameter], label: str, how: Sharding) -> None:
    grads, reduced = [f"{p.name}.grad" for p in sharded], [p.reduced for p in sharded]
    if reduced != grads:
        for p in sharded:
            shape, dtype = b.buffers[p.trained].shape, b.buffers[f"{p.name}.grad"].dtype
            b.of_parameter(p, p.reduced, shape, dtype, role="gradients")
        scattered = f"{label}.scatter", "reduce_scatter", grads, reduced
        b.collective(*scattered, *how.over, purpose=BUCKET_SCATTER)
    if b.grid.size(*how.copies) > 1:
        summed = f"{label}.reduce", "all_reduce", reduced, reduced
        b.collective(*summed, *how.copies, purpose=BUCKET_REDUCE)


def _sum_small(b: Builder) -> None:
    own = [p for p in b.at_end if not p.sharded]
    partial = [f"{p.name}.grad" for p in own if _is_partial(b, p)]
    small = [f"{p.name}.grad" for p in own if f"{p.name}.grad" not in partial]
    rows_of_x, tokens = b.shards_of("rows"), b.shards_of("tokens")
    if partial:
        label = "rows.reduce" if rows.parts(b) > 1 else "heads.reduce"
        b.collective(label, "all_reduce", partial, partial, *rows_of_x, *tokens)
    if small and b.grid.size(*tokens) > 1:
        b.collective("small.reduce", "all_reduce", small, small, *tokens)


def _handle_slices(b: Builder, count: int) -> None:
    """Kernels for the slices of each weight, whose bytes the update has."""
    numbers: dict[Part, int] = {}
    for p in b.parameters.values():
        numbers[p.owner] = number = numbers.get(p.owner, 0) + 1
        b.op(f"slices.{number}", "launches", [], [], nbytes=0, part=p.owner, count=count)


def _is_partial(b: Builder, p: Parameter) -> bool:
    """Whether each rank of x has a part of the gradient's sum: from its heads alone or, of what
    ranks with other rows do not hold other parts of, from its rows."""
    if b.grid.size(*p.terms) > 1:
        return True
    rows_of_x = set(b.shards_of("rows"))
    is_split = any(rows_of_x & set(axes) for axes in b.layouts[p.name].split)
    return rows.parts(b) > 1 and not is_split


def _clip(b: Builder) -> None:
    """The norm counts each gradient once: copies share its square among them. A stage without
    parameters adds nothing to it."""
    away, here = [list[Parameter](), list[Parameter]()]
    for p in b.parameters.values():
        (away if host_parameters.is_away(b, p.reduced) else here).append(p)
    norm = b.tensor("norm.square", (1,), b.wide, role="workspace")
    if here:
        shares = tuple(1 / p.copies for p in here)
        b.op("norm.squares", "square_sum", [p.reduced for p in here], [norm], shares=shares)
    else:
        b.op("norm.squares", "zero", [], [norm])
    if away:
        shares = tuple(1 / p.copies for p in away)
        host_parameters.squares(b, [p.reduced for p in away], shares, norm)
    b.all_reduce("norm.reduce", norm, *b.norm_axes, *b.shards_of("layers"), purpose=NORM_REDUCE)
    scale = b.tensor("clip.scale", (1,), b.wide, role="workspace")
    b.op("clip", "clip_scale", [norm, *goldfish.of_kept(b, norm)], [scale])
