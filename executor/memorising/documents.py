"""Documents of a text, and the stream in which they come again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import torch

from executor.data.tokens import Text
from executor.errors import TextError
from executor.memorising.spec import LAST, REPETITIONS

MOST_BYTES = 1 << 24  # of a text, from its beginning
Buckets = Mapping[int, torch.Tensor]


def buckets_of(text: Text, length: int, documents: int, seed: int) -> Buckets:
    """For each count of repetitions so many documents, (documents, length) tokens.

    A document is one of the pieces of `length` bytes into which the text falls. None is taken whose
    last tokens stand elsewhere in the text too, so that what the model says of them it has from
    this document.
    """
    whole = bytes(text[:MOST_BYTES])
    places = list(range(len(whole) // length))
    random.Random(seed).shuffle(places)
    wanted = documents * len(REPETITIONS)
    found: list[bytes] = []
    for place in places:
        piece = whole[place * length : (place + 1) * length]
        if whole.count(piece[-LAST:]) == 1:
            found.append(piece)
        if len(found) == wanted:
            break
    if len(found) < wanted:
        raise TextError(
            f"the text has {len(found)} documents of {length} bytes whose last {LAST} stand "
            f"nowhere else in it; {wanted} are needed ({documents} for each of "
            f"{len(REPETITIONS)} counts of repetitions)"
        )
    tokens = torch.tensor([list(piece) for piece in found])
    return dict(zip(REPETITIONS, torch.split(tokens, documents), strict=True))


def stream(buckets: Buckets, passes: int, batch: int, seed: int) -> Iterator[torch.Tensor]:
    """The batches of all passes, (batch, length) tokens; each pass has every document as often as
    its bucket says, in an order of its own."""
    one = torch.cat([tokens.repeat(count, 1) for count, tokens in buckets.items()])
    generator = torch.Generator().manual_seed(seed)
    order = torch.cat([torch.randperm(len(one), generator=generator) for _ in range(passes)])
    return (one[chosen] for chosen in torch.split(order, batch))
