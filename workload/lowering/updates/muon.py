"""Ops of Muon: matrices gathered, and made orthogonal by iterations (`workload/rules/muon.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workload.grid import Axes
from workload.layout import Layout
from workload.lowering.builder import Builder
from workload.lowering.parameter import Parameter
from workload.lowering.updates.elementwise import at_hand, elementwise
from workload.op import Part
from workload.rules.muon import COEFFICIENTS, ITERATIONS, MOMENTUM, OF_EXPERTS, STACKED


def emit(b: Builder, owner: Part, parameters: Sequence[Parameter], grads: Sequence[str]) -> None:
    """Emit the update of a layer's matrices."""
    momenta = [at_hand(b, f"{p.name}.momentum") for p in parameters]
    parts, cast = list(grads), list[str]()
    if b.dtype != b.wide:
        parts = cast = [
            b.of_parameter(p, f"{p.name}.direction", b.buffers[m].shape, b.dtype, "workspace")
            for p, m in zip(parameters, momenta, strict=True)
        ]
    reads, writes = [*grads, *momenta], [*grads, *momenta, *cast]
    b.op("muon.momentum", "muon_momentum", reads, writes, part=owner, momentum=MOMENTUM)
    sources = _gathered(b, owner, parameters, parts)
    tiles = []
    for number, (parameter, source) in enumerate(zip(parameters, sources, strict=True)):
        tiles.append(_orthogonal(b, parameter, f"muon.{number}", source))
    flat = tuple(b.states[p.name].flat for p in parameters)
    moved = sum(map(b.nbytes, parts)) + sum(2 * b.nbytes(at_hand(b, p.trained)) for p in parameters)
    elementwise(b, "muon", owner, parameters, tiles, (), nbytes=moved, flat=flat)


def _gathered(
    b: Builder, owner: Part, parameters: Sequence[Parameter], parts: Sequence[str]
) -> list[str]:
    """Emit the gathers of all tiles of some matrices from this rank's parts of them; returns what
    has them all, the tiles along the width of the stream first, then along heads."""
    kinds: dict[str, list[int]] = {}
    for at, parameter in enumerate(parameters):
        kinds.setdefault(_kind(b.layouts[parameter.name]), []).append(at)
    found = list(parts)
    for kind, places in kinds.items():
        own = [parameters[at] for at in places]
        gathered = _gathered_alike(b, owner, f"muon.{kind}gather", own, [found[p] for p in places])
        for at, name in zip(places, gathered, strict=True):
            found[at] = name
    return found


def _kind(layout: Layout) -> str:
    """What the label of a gather says of weights that are split otherwise than others are."""
    if len(layout.shape) == OF_EXPERTS:
        return "experts."
    return "" if any(layout.split) else "copies."


def _gathered_alike(
    b: Builder, owner: Part, label: str, parameters: Sequence[Parameter], parts: Sequence[str]
) -> list[str]:
    """Emit the gathers of all tiles of matrices that are split alike; returns what has them all."""
    found = list(parts)
    sharding = parameters[0].sharding
    flat = reversed(sharding.collectives(sharding.optimizer))
    for over in (*flat, *reversed(_tiled(b, b.layouts[parameters[0].name]))):
        count = b.grid.size(*over)
        if count == 1:
            continue
        gather = f"{label}.{'+'.join(over)}"
        whole = [
            b.of_parameter(
                p, f"{p.name}.{gather}", (count * b.buffers[name].elements,), b.dtype, "workspace"
            )
            for p, name in zip(parameters, found, strict=True)
        ]
        b.collective(gather, "all_gather", found, whole, *over, part=owner)
        found = whole
    return found


def _tiled(b: Builder, layout: Layout) -> tuple[Axes, Axes]:
    """The axes over which a matrix is cut into tiles: those of the width of the stream, and the
    others."""
    split = layout.split[-2:]
    width = b.shards_of("width") if b.shards_of("width") in split else ()
    return width, next((axes for axes in split if axes != width), ())


def _orthogonal(b: Builder, parameter: Parameter, label: str, source: str) -> str:
    """Emit the iterations on one weight's matrices, given all its tiles; returns this rank's tile
    of the update, as it is before its ranks share it."""
    layout = b.layouts[parameter.name]
    rows, bands = layout.shape[-2], layout.bands or layout.shape[-1:]
    turned = tuple(rows > columns for columns in bands)
    shapes = [
        (columns, rows) if t else (rows, columns) for columns, t in zip(bands, turned, strict=True)
    ]
    stack = _stack(b, layout)
    how: dict[str, Any] = {"part": parameter.owner, "on_side": turned, "split": layout.split[-2:]}
    how["tiled"] = _tiled(b, layout)

    def workspace(name: str, shape: tuple[int, ...]) -> str:
        whole = f"{parameter.name}.{name}"
        return b.of_parameter(parameter, whole, (*stack, *shape), b.dtype, "workspace")

    matrices = [workspace(f"x{band}.0", shape) for band, shape in enumerate(shapes)]
    b.op(f"{label}.tiles", "merge_tiles", [source], matrices, **how)
    for band, (short, long) in enumerate(shapes):
        pair = matrices[band], workspace(f"x{band}.1", (short, long))
        gram, powers = (workspace(f"{name}{band}", (short, short)) for name in ("gram", "powers"))
        for step in range(ITERATIONS):
            x, y = pair[step % 2], pair[1 - step % 2]
            own = f"{label}.{band}.{step}"
            _product(b, parameter, f"{own}.gram", "NT", (x, x), gram, (short, short, long))
            squared = (gram, gram, gram)
            _product(b, parameter, f"{own}.powers", "NN", squared, powers, (short,) * 3)
            _product(b, parameter, f"{own}.x", "NN", (powers, x, x), y, (short, long, short))
        matrices[band] = pair[ITERATIONS % 2]
    shape = b.whole_tile(parameter.name, *_tile(b, layout))
    tile = b.of_parameter(parameter, f"{parameter.name}.update", shape, b.dtype, "workspace")
    b.op(f"{label}.update", "take_tile", matrices, [tile], **how)
    return tile


def _stack(b: Builder, layout: Layout) -> tuple[int, ...]:
    """How many experts' matrices of a weight a rank holds; nothing of another weight."""
    return _tile(b, layout)[:-2]


def _tile(b: Builder, layout: Layout) -> tuple[int, ...]:
    pairs = zip(layout.shape, layout.split, strict=True)
    return tuple(n // b.grid.size(*axes) for n, axes in pairs)


def _product(
    b: Builder,
    parameter: Parameter,
    label: str,
    form: str,
    reads: tuple[str, ...],
    write: str,
    shape: tuple[int, int, int],
) -> None:
    """Emit a product of the first two operands, or with a third one, C, of u C + v A B: of an
    iteration's two such sums the first has A = X X^T as all operands and gives b A + c A^2. Of a
    stack, that of each of its matrices."""
    m, n, k = shape
    a, *sums = COEFFICIENTS
    weights = tuple(sums) if reads[0] == reads[-1] else (a, 1.0)
    more: dict[str, Any] = {"weights": weights} if len(reads) == 3 else {}
    layout = b.layouts[parameter.name]
    alike, stack = b.grid.ranks // b.grid.pp * b.copies, _stack(b, layout)
    if stack:
        more["count"] = stack[0]
        alike //= b.grid.size(*layout.split[0])
    b.op(
        label,
        STACKED if stack else "matmul",
        reads,
        [write],
        flops=2 * m * n * k * (stack or (1,))[0],
        replicas=alike,
        part=parameter.owner,
        form=form,
        m=m,
        n=n,
        k=k,
        **more,
    )
