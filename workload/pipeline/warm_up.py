"""The warm-up of 1F1B."""

from __future__ import annotations


def warm_up(stage: int, stages: int, micro_batches: int, chunks: int, more: int = 0) -> int:
    """How many forward passes a stage of 1F1B runs before its first pair of passes, with so many
    `more`.

    Source: Narayanan et al. (SC21), section 2.2; NVIDIA/Megatron-LM, schedules.py.

    >>> [warm_up(stage, 4, 8, 1) for stage in range(4)], warm_up(0, 4, 8, 2)
    ([3, 2, 1, 0], 10)
    """
    behind = stages - 1 - stage
    ahead = behind if chunks == 1 else 2 * behind + (chunks - 1) * stages
    return min(ahead + more, micro_batches * chunks)
