"""Byte-level tokens of any text, and each rank's share of a batch."""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path

import torch

from executor.errors import TextError
from executor.place import Place
from workload.gpt import GPT
from workload.plan import Plan

BYTES = 256


def read_text(path: str | None) -> bytes:
    """The text's bytes; without a path the language reference that ships with Python."""
    if path is None:
        return "\n".join(pydoc_data.topics.topics.values()).encode()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TextError(f"cannot read the text {path}: {error.strerror}") from None


def check_text(text: bytes, gpt: GPT) -> None:
    """Refuse a text that is too short, or a vocabulary that cannot hold a byte."""
    if gpt.vocab < BYTES:
        raise TextError(f"{gpt.name} has vocab={gpt.vocab}; byte tokens need at least {BYTES}")
    if len(text) <= gpt.sequence:
        raise TextError(
            f"the text has {len(text)} bytes; one sequence of {gpt.name} needs "
            f"{gpt.sequence + 1} (sequence={gpt.sequence} and a target)"
        )


def batch_of(text: bytes, gpt: GPT, batch: int, step: int, seed: int) -> torch.Tensor:
    """The windows of one step's batch: (batch, sequence + 1) tokens, the same for every plan."""
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(len(text) - gpt.sequence, (batch,), generator=generator)
    places = starts[:, None] + torch.arange(gpt.sequence + 1)
    return tokens[places].to(torch.int64)


def share(batch: torch.Tensor, plan: Plan, at: Place, micro_batch: int) -> torch.Tensor:
    """The sequences of one micro-batch that this rank's z and data coordinates see."""
    cells = plan.z * plan.data
    cell = at.index("z") + plan.z * at.index("data")
    start = (micro_batch * cells + cell) * plan.micro_batch
    return batch[start : start + plan.micro_batch]
