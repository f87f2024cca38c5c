"""Published weights written anew without training: another precision, other files."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save

from executor.published.config import config_beside
from executor.published.names import published
from executor.published.parameter import parted
from executor.published.reading import published_values
from executor.published.writing import FILE_BYTES, close, filed, held_by, nbytes_of
from executor.rank_context import DTYPES
from topologies.files.writing import write_whole
from topologies.records import record
from workload.gpt import GPT
from workload.lowering import lower
from workload.plan import Plan


@record
class Converted:
    """The files that were written, and the bytes of their tensors."""

    files: tuple[str, ...]
    nbytes: int


def convert(
    gpt: GPT, source: Path, folder: Path, precision: str, *, file_bytes: int = FILE_BYTES
) -> Converted:
    """Write a checkpoint's parameters into a folder, as a run that trains nothing would leave them.

    At most the tensors of one file, twice, are in memory. The config comes last.
    """
    program = lower(gpt, Plan.of(batch=1, mbs=1, precision=precision))
    order = {held.name: held for held in held_by(program, 0)}
    where = published(gpt)
    values = published_values(program, source)
    files = filed(list(order.values()), file_bytes)
    for file, names in files.items():
        tensors: dict[str, torch.Tensor] = {}
        for name, whole in islice(values, len(names)):
            dtype = DTYPES[order[name].buffer.dtype]  # corrections of scores stay in 32 bits
            tensors |= parted(whole.to(dtype), where[name])
        write_whole(folder / file, save(tensors, metadata={"format": "pt"}))
    beside = source if source.is_dir() else source.parent
    close(folder, gpt, precision, config_beside(beside), files=files, order=order)
    return Converted(tuple(files), sum(map(nbytes_of, order.values())))
