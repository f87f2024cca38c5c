"""How the work of attention falls on the steps of a ring where windows or documents limit it.

Letters: s is the sequence, c the ranks of the ring, L = s / 2c the tokens of a chunk, w the window,
d a document. At step t a rank has the two chunks of the rank t places before it, and of all pairs
of a query and a key that attention is over (P of them) those of chunks at some distances fall on
the step: a step without any is left out, though its keys go on around the ring. An op counts its
share of all FLOPs, as many as P has of the pairs on all ranks: ranks of a step differ, by a chunk
at the ends of a sequence, which is not modelled. Where documents have several lengths, or cut
chunks, ranks may differ by far, and how many times its share the busiest one does is counted too.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from workload.models import documents
from workload.op import BUSIEST, LONGEST

Shape = dict[str, Any]
LIMITS = ("window", "document", "documents")


def is_limited(shape: Shape) -> bool:
    """Whether queries see fewer than all keys before them."""
    return any(key in shape for key in LIMITS)


def cut_at_chunks(shape: Shape, parts: int, sequence: Any) -> Shape:
    """The shape with each document named, where documents are of one length and cut chunks."""
    length, span = sequence // (2 * parts), shape.get("document", sequence)
    if not (length % span and span % length):
        return shape
    own = {key: value for key, value in shape.items() if key != "document"}
    return {**own, "sequence": sequence, "documents": f"{int(sequence // span)}x{int(span)}"}


def of_busiest(shape: Shape, ranks: list[int], at_hand: int) -> Shape:
    """What is known of the rank that has most to do where ranks have so many pairs of a query and a
    key, and `at_hand` tokens' keys: how many times the mean of all ranks it has, and how many times
    its mean block of queries the longest one takes. That is taken to have all keys at hand that a
    document or a window has."""
    every = documents.lengths(shape["documents"])
    tokens, span = sum(every) // len(ranks), max(every)
    most = min(at_hand, span, int(shape.get("window", span)))
    return {BUSIEST: documents.busiest(ranks), LONGEST: max(most * tokens / max(ranks), 1.0)}


def of_gathered(shape: Shape, parts: int) -> Shape:
    """What is known of the rank that has most to do where all keys are gathered."""
    ranks = documents.of_ranks(shape["documents"], int(shape.get("window", 0)), parts)
    return of_busiest(shape, ranks, sum(documents.lengths(shape["documents"])))


def pairs_of_ring_steps(
    shape: Shape, parts: int, sequence: Any
) -> tuple[list[Any], Any, list[Shape]]:
    """The pairs of a query and a key on all ranks together, a number for each of `parts` steps, and
    their sum; and for each step what is known of its busiest rank (`of_busiest`), which is nothing
    but for documents of several lengths."""
    if "documents" in shape:
        steps = documents.in_ring(shape["documents"], int(shape.get("window", 0)), parts)
        pairs, tokens = [sum(ranks) for ranks in steps], int(sequence) // parts
        known = [of_busiest(shape, ranks, tokens) if any(ranks) else {} for ranks in steps]
        return pairs, sum(pairs), known
    length = sequence // (2 * parts)
    span = shape.get("document", sequence)
    window = shape.get("window", span)
    every = sequence // span * (span * window - window * (window - 1) // 2)
    most = int((window - 2) // length + 1)  # chunks between which a query sees a key, at most
    chunks = 0 if span < length else int(span // length)  # of a document
    later: list[Any] = []
    for step in range(1, parts):
        found = _distances(step, parts, chunks)
        later.append(sum(n * _pairs(d, length, window) for d, n in found.items() if d <= most))
    return [every - sum(later), *later], every, [{}] * parts


def _distances(step: int, parts: int, chunks: int) -> Counter[int]:
    """How many pairs of chunks of one document meet at a step, by how far apart they are."""
    found = Counter[int]()
    for rank in range(parts):
        owner = (rank - step) % parts
        for query in (rank, 2 * parts - 1 - rank):
            for key in (owner, 2 * parts - 1 - owner):
                if chunks and key < query and query // chunks == key // chunks:
                    found[query - key] += 1
    return found


def _pairs(distance: int, length: Any, window: Any) -> Any:
    """The pairs of a query of a chunk and a key of one so many chunks before it, less than the
    window apart.

    >>> [_pairs(1, 4, window) for window in (1, 2, 4, 5, 8)]
    [0, 1, 6, 10, 16]
    """
    further = window - 1 - distance * length  # how much later the query may be within its chunk
    if further < 1 - length:
        return 0
    if further < 0:
        return (length + further) * (length + further + 1) // 2
    if further < length:
        return length * length - (length - further - 1) * (length - further) // 2
    return length * length
