"""Documents of several lengths packed in each sequence: their text, and the pairs that are seen.

The text has lengths in tokens in their order, as many of one length in a row as stand before an x:
`4096+2x2048`. Letters: s is the sequence, d a document, w the window in tokens, n the chunks that a
sequence is cut into. Attention counts d min(d, w) pairs of a query and a key in a document, as it
counts the whole square of a sequence; under the causal mask a query sees those keys of its own
document that are not later, nor w or more tokens before it.
Source: NeMo's packed sequences and NVIDIA/TransformerEngine's `cu_seqlens`, which are the sums of
such lengths.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby

from topologies.files.printable import shown
from workload.errors import ModelError
from workload.model.fields import ModelFields

MOST = 100_000  # documents of a sequence
_RUN = re.compile(r"(?:([1-9]\d{0,6})x)?([1-9]\d{0,8})", re.ASCII)


def text_of_lengths(given: Sequence[object]) -> str:
    """The text of a list of lengths.

    >>> text_of_lengths([4096, 2048, 2048])
    '4096+2x2048'
    """
    runs = ((str(length), len(list(run))) for length, run in groupby(given))
    return "+".join(length if count == 1 else f"{count}x{length}" for length, count in runs)


def lengths(text: str) -> tuple[int, ...]:
    """The lengths of a text, one for each document; a ModelError says what is none."""
    found: list[int] = []
    for word in text.split("+"):
        run = _RUN.fullmatch(word)
        if run is None:
            raise ModelError(
                f"documents={shown(text)}: {shown(word)} is not a length of a document; write them "
                "as in 4096+2x2048"
            )
        count = int(run[1] or 1)
        if len(found) + count > MOST:
            raise ModelError(f"documents={shown(text)} must be at most {MOST:,} documents")
        found += [int(run[2])] * count
    return tuple(found)


def ends(text: str) -> tuple[int, ...]:
    """Behind which token each document ends."""
    return tuple(accumulate(lengths(text)))


def document_at(text: str, token: int) -> slice:
    """The tokens of the document that a token of the sequence is in."""
    every = ends(text)
    which = bisect_right(every, token)
    return slice(every[which - 1] if which else 0, every[which])


def one_length(text: str) -> int:
    """The length of all documents of a text, if they have but one; else 0."""
    every = set(lengths(text)) if text else set()
    return every.pop() if len(every) == 1 else 0


def counted_pairs(text: str, window: int) -> int:
    """The pairs of a query and a key that attention counts in a sequence.

    >>> counted_pairs("8+2x4", 0), counted_pairs("8+2x4", 5)
    (96, 72)
    """
    return sum(length * min(length, window or length) for length in lengths(text))


def seen_pairs(text: str, window: int, chunks: int) -> list[list[int]]:
    """How many keys of each of `chunks` equal parts of a sequence all queries of each part see, by
    the queries' part. `window` 0: all of a document.

    >>> seen_pairs("6+2", 0, 2)
    [[10, 0], [8, 6]]
    """
    table = [[0] * chunks for _ in range(chunks)]
    every, start = ends(text), 0
    length = every[-1] // chunks
    for end in every:
        for q in range(start // length, (end - 1) // length + 1):
            queries = _within(q * length, length, start, end)
            for k in range(start // length, q + 1):
                table[q][k] += _pairs(queries, _within(k * length, length, start, end), window)
        start = end
    return table


def of_ranks(text: str, window: int, parts: int) -> list[int]:
    """The pairs that the queries of each of `parts` ranks see, each of which has one chunk from
    either end of a sequence (executor/kernels/context/positions.py).

    >>> of_ranks("6+2", 0, 2)
    [6, 18]
    """
    return [sum(each) for each in zip(*in_ring(text, window, parts), strict=True)]


def in_ring(text: str, window: int, parts: int) -> list[list[int]]:
    """The pairs that the queries of each rank see at each step of a ring, at which a rank has the
    keys of the rank so many places before it: a list of ranks for each step."""
    table = seen_pairs(text, window, 2 * parts)

    def met(rank: int, owner: int) -> int:
        keys = (owner, 2 * parts - 1 - owner)
        return sum(table[q][k] for q in (rank, 2 * parts - 1 - rank) for k in keys)

    ranks = range(parts)
    return [[met(rank, (rank - step) % parts) for rank in ranks] for step in ranks]


def busiest(of_each: Sequence[int]) -> float:
    """How many times the mean of all ranks the busiest one has."""
    return max(of_each) * len(of_each) / sum(of_each) if any(of_each) else 1.0


def _within(first: int, length: int, start: int, end: int) -> range:
    """The tokens of a part of the sequence that are of a document."""
    return range(max(first, start), min(first + length, end))


def _pairs(queries: range, keys: range, window: int) -> int:
    """Pairs of these of which the key is not later, and less than a window before the query."""
    beyond = _at_least(queries, keys, window) if window else 0
    return _at_least(queries, keys, 0) - beyond


def _at_least(queries: range, keys: range, distance: int) -> int:
    """Pairs of which the query is so much later, or more: of all queries before x and keys from y
    on they are a triangle of x - distance - y rows."""

    def triangle(x: int, y: int) -> int:
        rows = max(x - distance - y, 0)
        return rows * (rows + 1) // 2

    later = triangle(queries.stop, keys.start) - triangle(queries.start, keys.start)
    return later - triangle(queries.stop, keys.stop) + triangle(queries.start, keys.stop)


def refusals(gpt: ModelFields) -> Iterator[str]:
    """What is wrong with a model's documents, in words that follow the model's name."""
    said = f"documents={gpt.packing.documents}"
    try:
        every = lengths(gpt.packing.documents)
    except ModelError as error:
        yield str(error)
        return
    if sum(every) != gpt.sequence:
        yield f"{said} are {sum(every):,} tokens, and sequence={gpt.sequence}; they must be as many"
    if gpt.packing.document:
        yield f"{said} says the lengths that document={gpt.packing.document} says; give one of them"
    if gpt.dropout:
        yield f"{said} needs dropout=0, not {gpt.dropout:g}"
    if gpt.pattern and len(every) > 1:
        yield f"{said} does not support pattern: states of Mamba-2 would go from one to the next"
