"""The order of a step: micro-batches forward and backward, then the optimizer, then the passes."""

from __future__ import annotations

from collections.abc import Iterable

from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.lowering import layer, optimizer, vocabulary
from workload.lowering.builder import Builder
from workload.lowering.sharding import sharding_of
from workload.passes import overlap
from workload.plan import Plan
from workload.program import Program


def lower(gpt: GPT, plan: Plan) -> Program:
    """The program of one rank for one step of `gpt` under `plan`.

    Every rank of a grid performs the same ops on buffers of the same shapes. A PlanCannotRunError
    says which width the plan does not divide.
    """
    check(gpt, plan)
    b = Builder(gpt, plan)
    vocabulary.declare(b)
    b.state("loss", (1,), b.wide, "workspace", plan.grid.ranks)
    for index in range(gpt.layers):
        layer.declare(b, f"l{index}")
    for m in range(plan.micro_batches):
        vocabulary.inputs(b, m)
        _micro_batch(b, m)
    optimizer.finish(b)
    ops = overlap(b.ops, plan, b.buffers)
    return Program(gpt, plan, tuple(ops), b.buffers, b.layouts, b.states)


def check(gpt: GPT, plan: Plan) -> None:
    """Refuse a plan that does not divide the model, naming what would."""
    x, y, shards = plan.x, plan.y, sharding_of(plan)
    groups = {"kv_heads": gpt.kv_heads} if gpt.kv_heads else {}
    _divides("x", x, {"heads": gpt.heads, **groups, "ffn": gpt.ffn})
    _divides("y", y, {"hidden": gpt.hidden})
    tiles = {
        "the query-key-value weight": gpt.hidden * sum(gpt.bands) // (x * y),
        "the output weight": gpt.hidden * gpt.bands[0] // (x * y),
        "the MLP weight": gpt.hidden * gpt.ffn // (x * y),
    }
    parts = plan.grid.size(*shards.optimizer)
    for name, elements in tiles.items():
        if elements % parts:
            raise PlanCannotRunError(
                f"{'*'.join(('z', *shards.over))}={parts} does not divide the {elements} elements "
                f"of {name} of a rank; nearest: {_nearest(parts, [elements])}"
            )


def _divides(axis: str, size: int, widths: dict[str, int]) -> None:
    for name, width in widths.items():
        if width % size:
            raise PlanCannotRunError(
                f"{axis}={size} does not divide {name}={width}; "
                f"nearest: {_nearest(size, list(widths.values()))}"
            )


def _nearest(size: int, widths: list[int]) -> str:
    def fits(candidate: int) -> bool:
        return all(width % candidate == 0 for width in widths)

    below = next((c for c in range(size - 1, 0, -1) if fits(c)), 0)
    above: Iterable[int] = range(size + 1, min(widths) + 1)
    nearest = [below, next((c for c in above if fits(c)), 0)]
    return ", ".join(str(candidate) for candidate in nearest if candidate)


def _micro_batch(b: Builder, m: int) -> None:
    """Forward through all layers, head and loss, then backward in reverse, recomputing if asked."""
    full = b.plan.recompute == "full"
    b.block = f"m{m}.embed"
    stream, embedded = vocabulary.embed(b, m)
    saved = []
    for index in range(b.gpt.layers):
        b.block = f"m{m}.l{index}.forward"
        source = stream
        stream, kept = layer.forward(b, f"m{m}.l{index}.", f"l{index}", source)
        saved.append(kept)
    b.block = f"m{m}.head"
    grad = vocabulary.head(b, m, stream)
    for index in reversed(range(b.gpt.layers)):
        kept = saved[index]
        if full:
            b.block = f"m{m}.l{index}.recompute"
            _, kept = layer.forward(b, f"m{m}.l{index}.re.", f"l{index}", kept.source)
        b.block = f"m{m}.l{index}.backward"
        prefix, owner = f"m{m}.l{index}.", f"l{index}"
        grad = layer.backward(b, prefix, owner, m, kept, grad, gathered=full)
    b.block = f"m{m}.embed.backward"
    vocabulary.embed_backward(b, m, grad, embedded)
