"""Weights: from whole tensors to one rank's parts and back, and their initial values."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F

from executor.buffer_table import BufferTable
from executor.rank_context import DTYPES
from workload.gpt import GPT
from workload.grid import Grid
from workload.layout import DECAYS, ONES, RESIDUAL, STEPS, TAPS, ZEROS, Layout
from workload.program import Program
from workload.rules.table import rule_of


def cut(
    whole: torch.Tensor, layout: Layout, grid: Grid, rank: int, filler: int = 0
) -> torch.Tensor:
    """The part of a whole parameter that a rank holds, as its buffer is shaped; `filler` follows a
    tile."""
    tile = _padded(whole, layout)
    at = grid.coordinates(rank)
    for dim, axes in enumerate(layout.split):
        last = dim == len(layout.split) - 1
        bands = layout.bands if last and layout.bands else (tile.shape[dim],)
        parts = [_part(band, dim, axes, grid, at) for band in tile.split_with_sizes(bands, dim)]
        tile = torch.cat(parts, dim)
    if layout.flat:
        tile = _part(
            F.pad(tile.reshape(-1), (0, layout.tail), value=filler), 0, layout.flat, grid, at
        )
    return tile.contiguous()


def join(parts: Mapping[int, torch.Tensor], layout: Layout, grid: Grid) -> torch.Tensor:
    """The whole parameter from every rank's part (copies are taken once)."""
    index = torch.arange(_count(layout.padded)).view(layout.padded)
    whole = torch.empty(_count(layout.padded), dtype=next(iter(parts.values())).dtype)
    padded = replace(layout, shape=layout.padded)
    for rank, part in parts.items():
        places = cut(index, padded, grid, rank, filler=-1).reshape(-1)
        whole[places[places >= 0]] = part.reshape(-1)[places >= 0]
    return _cropped(whole.view(layout.padded), layout)


def initial_value(name: str, layout: Layout, gpt: GPT, seed: int) -> torch.Tensor:
    """GPT-2's initialisation of one parameter, in fp32, the same for every plan.

    Normal with deviation 0.02, the projections back into the residual stream divided by
    sqrt(2 layers); gains one, biases zero. Source: Radford et al. (2019), section 2.3; of Mamba-2
    layers below.
    """
    if layout.starts in (ONES, ZEROS):
        return torch.full(layout.shape, 1.0 if layout.starts == ONES else 0.0)
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    if layout.starts in (TAPS, DECAYS, STEPS):
        return _of_scan(layout, torch.rand(layout.shape, generator=generator), gpt)
    deviation = 0.02
    if layout.starts == RESIDUAL:
        deviation /= (2 * gpt.layers) ** 0.5
    return torch.empty(layout.shape).normal_(0.0, deviation, generator=generator)


def _of_scan(layout: Layout, even: torch.Tensor, gpt: GPT) -> torch.Tensor:
    """Numbers of Mamba-2 layers from such between 0 and 1: taps of a convolution up to 1 over the
    root of their count, logarithms of rates between 1 and 16, and biases whose softplus is a step
    between 0.001 and 0.1, evenly in logarithms.

    Source: state-spaces/mamba, mamba_ssm/modules/mamba2.py, and torch's for a convolution.
    """
    if layout.starts == TAPS:
        return (2 * even - 1) / math.sqrt(gpt.mamba2.conv)
    if layout.starts == DECAYS:
        return (1 + 15 * even).log()
    steps = (even * math.log(0.1 / 0.001) + math.log(0.001)).exp()
    found: torch.Tensor = steps + (-(-steps).expm1()).log()
    return found


def load(
    table: BufferTable, program: Program, rank: int, values: Iterable[tuple[str, torch.Tensor]]
) -> None:
    """Put whole parameters into a rank's buffers: its part, the master copy, empty states."""
    grid, rule = program.plan.grid, rule_of(program.plan.training.optimizer)
    states = dict.fromkeys((*rule.matrices.states, *rule.others.states))
    for name, whole in values:
        part = cut(whole, program.layouts[name], grid, rank)
        table[name].copy_(part)
        for state in (each for each in states if f"{name}.{each}" in program.buffers):
            table[f"{name}.{state}"].zero_()
        if f"{name}.master" in program.buffers:
            table[f"{name}.master"].copy_(cut(whole, program.states[name], grid, rank))


def initial_values(program: Program, seed: int) -> Iterable[tuple[str, torch.Tensor]]:
    """Every parameter's initial value, one at a time."""
    dtype = DTYPES[program.plan.training.precision]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for name, layout in program.layouts.items():
        yield name, initial_value(name, layout, program.gpt, seed).to(wide)


def _part(
    band: torch.Tensor, dim: int, axes: tuple[str, ...], grid: Grid, at: dict[str, int]
) -> torch.Tensor:
    index, stride = 0, 1
    for axis in axes:
        index += stride * at[axis]
        stride *= grid.size(axis)
    return band.chunk(stride, dim)[index]


def _padded(whole: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Zeros after the last entry of each dimension, as many as the layout's padding asks."""
    widths = zip(reversed(layout.shape), reversed(layout.padded), strict=True)
    return F.pad(whole, [n for shape, padded in widths for n in (0, padded - shape)])


def _cropped(padded: torch.Tensor, layout: Layout) -> torch.Tensor:
    return padded[tuple(slice(0, n) for n in layout.shape)]


def _count(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
