"""Batches of tokens, the same for every plan, and each rank's share of one."""

from __future__ import annotations

import numpy as np
import torch

from executor.buffer_table import BufferTable
from executor.data.dataset import Dataset
from executor.data.sources import Data
from executor.kernels.context.positions import before_chunks, behind_chunks, of_rank
from executor.rank_context import RankContext
from workload.gpt import GPT
from workload.lowering.layers.goldfish import BEFORE
from workload.lowering.layers.vocabulary import BEHIND
from workload.op import EMBED, HEAD, Part
from workload.plan import Plan
from workload.program import Program


def batch_of(data: Data, gpt: GPT, batch: int, step: int, seed: int) -> torch.Tensor:
    """The windows of one step's batch: (batch, sequence + 1) tokens, the same for every plan.

    Of a text they begin anywhere, drawn anew in each step; of a dataset every window comes once in
    each epoch. Only the windows are copied.
    """
    if isinstance(data, Dataset):
        return torch.from_numpy(data.samples(gpt, step * batch, batch, seed))
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(len(data) - gpt.sequence, (batch,), generator=generator)
    places = starts[:, None] + torch.arange(gpt.sequence + 1)
    windows = np.frombuffer(data, dtype=np.uint8)[places.numpy()]
    return torch.from_numpy(windows).to(torch.int64)


def share(
    batch: torch.Tensor, plan: Plan, at: RankContext, micro_batch: int, part: Part = EMBED
) -> torch.Tensor:
    """The sequences of one micro-batch that this rank's z and data coordinates see, as a part of
    the model gets them."""
    start = at.first_sequence(micro_batch, plan.mbs, part)
    return batch[start : start + plan.mbs]


def feed(batch: torch.Tensor, program: Program, table: BufferTable, at: RankContext) -> None:
    """Put this rank's share of a batch, token by token with its target, into its buffers."""
    for m in range(program.plan.micro_batches):
        begins, ends = (share(batch, program.plan, at, m, part) for part in (EMBED, HEAD))
        for name, own in (("tokens", begins[:, :-1]), ("targets", ends[:, 1:])):
            if f"m{m}.{name}" in program.buffers:
                table[f"m{m}.{name}"].copy_(of_rank(own, at).reshape(-1))
        for name, of_chunks in ((BEFORE, before_chunks), (BEHIND, behind_chunks)):
            if f"m{m}.{name}" in program.buffers:
                held = table[f"m{m}.{name}"]
                held.copy_(of_chunks(ends[:, 1:], held.shape[-1], at))
