"""The sizes of a program's buffers on each rank of experts, where ranks have more rows or fewer.

A program is lowered for the rank with most rows of each layer, which the others wait for. In
another layer that may be another rank, and memory is one rank's: so much is in use on a rank as
buffers of rows have with its own. Only ranks are looked at of which no other one has as many rows
or more in every layer, since memory grows with rows.
Cost: a sum over the program's ops for each such rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workload.expert_loads.histogram import RoutedGPT, different_counts, dispatched_rows
from workload.program import Program


def sizes_of_ranks(program: Program) -> list[Sequence[int]]:
    """The bytes of all buffers, in their order, on each rank that may be the fullest."""
    gpt, plan, usual = program.gpt, program.plan, program.nbytes
    ragged = _layers_of_rows(program) if isinstance(gpt, RoutedGPT) else {}
    if not isinstance(gpt, RoutedGPT) or not ragged:
        return [usual]
    layers = sorted(set(ragged.values()))
    loads = {layer: gpt.histogram.of_ranks(layer, plan.ep) for layer in layers}
    most = [max(loads[layer]) for layer in layers]
    ranks = _undominated([tuple(loads[layer][r] for layer in layers) for r in range(plan.ep)])
    if ranks == [tuple(most)]:
        return [usual]
    sent, found = dispatched_rows(gpt, plan) * plan.ep, list[Sequence[int]]()
    for rank in ranks:
        own = dict(zip(layers, rank, strict=True))
        rows = {layer: -(-sent * own[layer] // sum(loads[layer])) for layer in layers}
        sizes = list(usual)
        for at, (buffer, nbytes) in enumerate(zip(program.buffers.values(), usual, strict=True)):
            if buffer.rows_of:
                each, more = buffer.rows_in
                count = rows[ragged[buffer.rows_of]] // each + more
                sizes[at] = nbytes // buffer.shape[0] * count
        found.append(sizes)
    return found


def least_sizes(program: Program) -> Sequence[int]:
    """The bytes of all buffers where ranks have the mean of all rows, unless the same rank has most
    in every layer: some rank has no less in use at any time, however rows are spread.

    What is in use at a time is a sum of sizes, each of which grows with a layer's rows, and so no
    more in the mean of all ranks than on the fullest. Sizes by blocks of rows are one block less,
    since each rank has but its whole blocks.
    """
    gpt, plan = program.gpt, program.plan
    if not isinstance(gpt, RoutedGPT) or len(different_counts(gpt)) == 1:
        return program.nbytes
    rows, sizes = dispatched_rows(gpt, plan), list(program.nbytes)
    for at, buffer in enumerate(program.buffers.values()):
        if buffer.rows_of:
            each, more = buffer.rows_in
            count = rows if each == 1 else rows // each + more - 1
            sizes[at] = sizes[at] // buffer.shape[0] * count
    return sizes


def fullest(program: Program) -> Program:
    """The program with the sizes of the rank whose memory is fullest."""
    every = sizes_of_ranks(program)
    if every == [program.nbytes]:
        return program
    outline = program.outline
    ranks = (replace(program, like=outline, known_nbytes=nbytes) for nbytes in every)
    return max(ranks, key=lambda each: each.peak.total_bytes)


def _layers_of_rows(program: Program) -> dict[str, int]:
    """The layer of each buffer that counts rows."""
    counted = {buffer.rows_of for buffer in program.buffers.values()} - {""}
    return {
        name: op.part.layer for op in program.outline.ops for name in op.writes if name in counted
    }


def _undominated(ranks: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Pareto-maximal ranks: no other has as much or more everywhere.

    >>> _undominated([(4, 1), (1, 4), (4, 1), (3, 1)])
    [(4, 1), (1, 4)]
    """
    found: list[tuple[int, ...]] = []
    for own in sorted(set(ranks), key=sum, reverse=True):
        if not any(all(a >= b for a, b in zip(other, own, strict=True)) for other in found):
            found.append(own)
    return found
