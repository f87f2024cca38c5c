"""Ops of rules that compare losses: moving parameters, slopes, updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workload.grid import Axes
from workload.lowering.builder import Builder
from workload.lowering.parameter import Parameter
from workload.lowering.updates.elementwise import elementwise
from workload.op import LOSS_REDUCE, PERTURB, SLOPE_GATHER, Part
from workload.rules.rule import ZerothOrder
from workload.rules.zeroth_order import LOSSES, SLOPES, UPDATE


def loss_of(b: Builder, micro_batch: int) -> str:
    """What a micro-batch's loss is added to: each pass over the batch has a sum of its own."""
    return LOSSES[micro_batch >= b.plan.micro_batches]


def emit_perturbation(b: Builder, label: str, parameters: Sequence[Parameter]) -> None:
    """Emit the move of an owner's parameters to where the pass at hand wants them: in place, or
    away from master copies."""
    names, trained = [p.name for p in parameters], [p.trained for p in parameters]
    further = -2.0 if names == trained else -1.0
    scale = 1.0 if b.block.micro_batch == 0 else further
    how = _directions(b, parameters)
    b.op(label, PERTURB, trained, names, parameters=tuple(names), scale=scale, **how)


def emit_slopes(b: Builder) -> None:
    """Emit the sum of both losses over tokens and stages, the projected gradient along the
    direction, and the exchange of these where replicas have a direction each."""
    if b.stage != b.head_stage:
        for name in LOSSES:
            b.op(f"{name}.zero", "zero", [], [name])
    replicas = _replicas(b)
    tokens = [axis for axis in b.shards_of("tokens") if axis not in replicas]
    over = *tokens, *b.shards_of("layers")
    if b.grid.size(*over) > 1:
        b.collective("loss.reduce", "all_reduce", LOSSES, LOSSES, *over, purpose=LOSS_REDUCE)
    count = b.grid.size(*replicas)
    own = b.tensor("slope" if count > 1 else SLOPES, (1, 2), b.wide, role="workspace")
    b.op("slope", "slope", LOSSES, [own], eps=_rule(b).eps)
    if count > 1:
        every = b.tensor(SLOPES, (count, 2), b.wide, role="workspace")
        b.collective("slopes.gather", "all_gather", [own], [every], *replicas, purpose=SLOPE_GATHER)
    b.op("slopes.loss", "slopes_loss", [SLOPES], LOSSES[:1])


def emit_update(
    b: Builder, owner: Part, parameters: Sequence[Parameter], slopes: Sequence[str]
) -> None:
    """Emit the way back of parameters that were moved in place, and the step along the directions
    of all replicas.

    Each different direction takes a pass over the parameters; the first takes the way back too.
    """
    trained, names = [p.trained for p in parameters], [p.name for p in parameters]
    how = _directions(b, parameters)
    passes = min(how["directions"], _rule(b).candidates or 1)
    moved = 2 * passes * sum(map(b.nbytes, trained))
    how["back"] = _rule(b).eps if trained == names else 0.0
    how["nbytes"] = moved + (0 if trained == names else sum(map(b.nbytes, names)))
    elementwise(b, UPDATE, owner, parameters, slopes[:1], (), **how)


def _rule(b: Builder) -> ZerothOrder:
    assert b.rule.zeroth_order is not None, "asked for by such rules alone"
    return b.rule.zeroth_order


def _replicas(b: Builder) -> Axes:
    """The axes whose ranks have directions of their own."""
    return b.grid.replicas_of("weights") if _rule(b).candidates else ()


def _directions(b: Builder, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """What a kernel must know to draw the numbers of parameters: how many directions there are in
    a step, and from where in the whole parameters the elements of a rank's parts are."""
    rule, count = _rule(b), b.grid.size(*_replicas(b))
    held = [b.layouts[p.name] for p in parameters]
    cuts = tuple((h.shape, h.padded, h.split, h.bands, h.flat, h.tail) for h in held)
    return {"eps": rule.eps, "candidates": rule.candidates, "directions": count, "cuts": cuts}
