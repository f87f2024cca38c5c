"""Where in their sequences a rank's rows are, where `context` splits each sequence.

Letters: c is the size of context. A sequence is cut into 2c chunks, and rank i of context has chunk
i and chunk 2c - 1 - i, one behind the other: under the causal mask each pair is as much work.
Source: Megatron-Core, get_batch_on_this_cp_rank; Grattafiori et al. (Llama 3), section 3.3.2.
"""

from __future__ import annotations

import torch

from executor.rank_context import RankContext


def tokens_of_rank(sequence: int, at: RankContext) -> int:
    """How many tokens of each sequence a rank has."""
    return sequence // at.grid.parts_of("positions")


def chunks(sequence: int, at: RankContext) -> list[slice]:
    """The positions that a rank has of each sequence, in the order of its rows."""
    parts = at.grid.parts_of("positions")
    if parts == 1:
        return [slice(0, sequence)]
    return chunk_pair(sequence, parts, at.part_of("positions"))


def chunk_pair(sequence: int, parts: int, index: int) -> list[slice]:
    """The positions of one of so many parts of a sequence."""
    length = sequence // (2 * parts)
    pair = index, 2 * parts - 1 - index
    return [slice(chunk * length, (chunk + 1) * length) for chunk in pair]


def positions(rows: torch.Tensor, sequence: int, at: RankContext) -> torch.Tensor:
    """Where in its sequence each of some rows is, which are numbered as a micro-batch has them."""
    within = rows % tokens_of_rank(sequence, at)
    first, *second = chunks(sequence, at)
    if not second:
        return within
    length = first.stop - first.start
    further = torch.where(within < length, first.start, second[0].start - length)
    return within + further


def of_rank(tokens: torch.Tensor, at: RankContext) -> torch.Tensor:
    """A rank's columns of (sequences, sequence) tokens."""
    own = [tokens[:, part] for part in chunks(tokens.shape[1], at)]
    return own[0] if len(own) == 1 else torch.cat(own, 1)


def behind_chunks(tokens: torch.Tensor, count: int, at: RankContext) -> torch.Tensor:
    """The `count` tokens behind each of a rank's chunks, (sequences, chunks, count): behind the
    sequence's end its first ones."""
    longer = torch.cat([tokens, tokens[:, :count]], 1)
    ends = [part.stop for part in chunks(tokens.shape[1], at)]
    return torch.stack([longer[:, end : end + count] for end in ends], 1)


def before_chunks(tokens: torch.Tensor, count: int, at: RankContext) -> torch.Tensor:
    """The `count` tokens in front of each of a rank's chunks, (sequences, chunks, count): zeros
    where the sequence has none."""
    sequences, sequence = tokens.shape
    padded = torch.cat([tokens.new_zeros(sequences, count), tokens], 1)
    starts = [part.start for part in chunks(sequence, at)]
    return torch.stack([padded[:, start : start + count] for start in starts], 1)
