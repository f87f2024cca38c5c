"""The warm-up of 1F1B, and how many micro-batches each of several chunks gets in turn."""

from __future__ import annotations


def in_turn(stages: int, micro_batches: int) -> int:
    """How many micro-batches a chunk of a stage gets before the next chunk does: as many as there
    are stages or, where these leave fewer over for the last turn, the next number that leaves none
    or enough. There must be at least as many micro-batches as stages.

    Source: NVIDIA/Megatron-LM@d98e8a6, megatron/core/pipeline_parallel/schedules.py,
    get_schedule_table and forward_backward_pipelining_with_interleaving, which ends a run with
    other remainders; its default, --microbatch-group-size-per-virtual-pipeline-stage, is as many
    as there are stages.

    >>> [in_turn(4, count) for count in (4, 5, 8, 9, 10, 11)]
    [4, 5, 4, 5, 5, 6]
    """
    sizes = range(stages, micro_batches)
    return next((size for size in sizes if not 0 < micro_batches % size < stages), micro_batches)


def warm_up(stage: int, stages: int, micro_batches: int, chunks: int, more: int = 0) -> int:
    """How many forward passes a stage of 1F1B runs before its first pair of passes, with so many
    `more`.

    Source: Narayanan et al. (SC21), section 2.2; NVIDIA/Megatron-LM, schedules.py.

    >>> [warm_up(stage, 4, 8, 1) for stage in range(4)], warm_up(0, 4, 8, 2)
    ([3, 2, 1, 0], 10)
    """
    behind = stages - 1 - stage
    more_chunks = (chunks - 1) * in_turn(stages, micro_batches) if chunks > 1 else 0
    ahead = behind if chunks == 1 else 2 * behind + more_chunks
    return min(ahead + more, micro_batches * chunks)
