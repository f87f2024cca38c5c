"""A run's weights as a published checkpoint: whole parameters, gathered from the ranks that hold
their parts, written by rank 0 as safetensors with the config that transformers loads them by."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save

from executor.published.checkpoint import FILE, INDEX
from executor.published.config import CONFIG, Document, config_of
from executor.published.names import published
from executor.published.parameter import Published, parted
from executor.rank_context import DTYPES
from executor.train import Trainer
from executor.weights import join
from topologies.files.writing import write_whole
from topologies.records import record
from workload.gpt import GPT
from workload.layout import Layout
from workload.lowering import lower
from workload.op import ITEM_BYTES, Buffer
from workload.program import Program

FILE_BYTES = 2 * 10**9  # of one file's tensors; rank 0 holds them, and their bytes, at once


@record
class Held:
    """A parameter of a stage: its layout, the buffer of each rank, and the ranks that hold its
    parts, one for each part."""

    name: str
    layout: Layout
    buffer: Buffer
    holders: tuple[int, ...]


def export(
    trainer: Trainer,
    folder: Path,
    source: Document | None,
    went_on: Callable[[], None],
    *,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Write the weights that all ranks' trainers hold together; every rank calls it.

    They go on parameter by parameter, calling `went_on` after each, so that nobody waits for longer
    than one takes. The config comes last: a folder without it is not finished.
    """
    gpt, plan, rank = trainer.program.gpt, trainer.program.plan, trainer.place.rank
    order, where = _every_held(trainer.program), published(gpt)
    files = filed(list(order.values()), file_bytes)
    for file, names in files.items():
        tensors: dict[str, torch.Tensor] = {}
        for name in names:
            whole = _gathered(order[name], trainer)
            tensors |= {} if whole is None else dict(parted(whole, where[name]))
            dist.barrier()
            went_on()
        if rank == 0:
            write_whole(folder / file, save(tensors, metadata={"format": "pt"}))
    if not rank:
        close(folder, gpt, plan.training.precision, source, files=files, order=order)


def close(
    folder: Path,
    gpt: GPT,
    precision: str,
    source: Document | None,
    *,
    files: Mapping[str, list[str]],
    order: Mapping[str, Held],
) -> None:
    """Write the index of several files, and last the config."""
    if len(files) > 1:
        _write_json(folder / INDEX, _index(files, order, published(gpt)))
    _write_json(folder / CONFIG, config_of(gpt, precision, source))


def _every_held(program: Program) -> dict[str, Held]:
    """The parameters of all stages; a table that two stages hold is taken from the first."""
    order: dict[str, Held] = {}
    for stage in range(program.plan.grid.pp):
        for held in held_by(lower(program.gpt, program.plan, stage), stage):
            order.setdefault(held.name, held)
    return order


def held_by(program: Program, stage: int) -> Iterator[Held]:
    """The parameters of a stage."""
    grid = program.plan.grid
    ranks = [rank for rank, own in enumerate(grid.stages().tolist()) if own == stage]
    for name, layout in program.layouts.items():
        cuts = {axis for axes in (*layout.split, layout.flat) for axis in axes}
        parts: dict[tuple[int, ...], int] = {}
        for rank in ranks:
            at = grid.coordinates(rank)
            parts.setdefault(tuple(at[axis] for axis in sorted(cuts)), rank)
        yield Held(name, layout, program.buffers[name], tuple(parts.values()))


def filed(order: Sequence[Held], most_bytes: int) -> dict[str, list[str]]:
    """Which parameters go into which file: one file, or several of at most so many bytes, unless
    one parameter has more."""
    groups: list[list[str]] = [[]]
    room = most_bytes
    for held in order:
        if groups[-1] and nbytes_of(held) > room:
            groups.append([])
            room = most_bytes
        groups[-1].append(held.name)
        room -= nbytes_of(held)
    if len(groups) == 1:
        return {FILE: groups[0]}
    stem, suffix = FILE.split(".")
    count = len(groups)
    return {f"{stem}-{i:05d}-of-{count:05d}.{suffix}": g for i, g in enumerate(groups, start=1)}


def _gathered(held: Held, trainer: Trainer) -> torch.Tensor | None:
    """The whole parameter on rank 0; None on the others, which send what they hold."""
    rank, device = trainer.place.rank, trainer.place.device
    if rank:
        if rank in held.holders:
            dist.send(trainer.table[held.name], 0)
        return None
    parts = {}
    for holder in held.holders:
        if holder == 0:
            part = trainer.table[held.name]
        else:
            part = torch.empty(held.buffer.shape, dtype=DTYPES[held.buffer.dtype], device=device)
            dist.recv(part, holder)
        parts[holder] = part.cpu()
    return join(parts, held.layout, trainer.place.grid)


def _index(
    files: Mapping[str, list[str]], order: Mapping[str, Held], where: Mapping[str, Published]
) -> Document:
    """Which file holds which tensor, and the bytes of all, as transformers reads it."""
    places = {
        name: file for file, names in files.items() for p in names for name in where[p].all_names
    }
    total = sum(map(nbytes_of, order.values()))
    return {"metadata": {"total_size": total}, "weight_map": places}


def nbytes_of(held: Held) -> int:
    """Bytes of the whole parameter."""
    return prod(held.layout.shape) * ITEM_BYTES[held.buffer.dtype]


def _write_json(path: Path, document: Document) -> None:
    write_whole(path, json.dumps(document, indent=2) + "\n")
