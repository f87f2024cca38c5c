"""Datasets of tokens, alone or mixed by weights: which windows a step trains on.

Sample i of a run is the same whatever the plan, and needs no earlier one: its source is that of
entry i of a cycle, its number within the source follows from the cycle's counts, and in each epoch
of a source a permutation of its own says which window that is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from executor.data.shuffle import shuffled
from executor.data.tokens import Numbers, Tokens, check_vocabulary
from executor.errors import TextError
from topologies.records import record
from workload.gpt import GPT

CYCLE = 10_000  # samples in which the shares are those that the weights ask for


@record
class Mixture:
    """A cycle of samples: `order` has each one's source, `before` how many earlier ones of the
    cycle have the same, `counts` how many each source has."""

    order: Numbers
    before: Numbers
    counts: Numbers


@record
class Dataset:
    """Sources of tokens and the cycle in which samples are taken from them."""

    sources: tuple[Tokens, ...]
    mixture: Mixture

    def check(self, gpt: GPT) -> None:
        """Refuse a source that has no whole sample, or a token that the model does not know."""
        for source in self.sources:
            if not source.samples(gpt.sequence):
                raise TextError(
                    f"{source.name} has {len(source.values)} tokens; one sequence of {gpt.name} "
                    f"needs {gpt.sequence + 1} (sequence={gpt.sequence} and a target)"
                )
            source.check(gpt.vocab, gpt.name)

    def samples(self, gpt: GPT, first: int, count: int, seed: int) -> Numbers:
        """So many samples from number `first` on: (count, sequence + 1) tokens."""
        cycles, places = np.divmod(np.arange(first, first + count), len(self.mixture.order))
        chosen = self.mixture.order[places]
        numbers = cycles * self.mixture.counts[chosen] + self.mixture.before[places]
        found = np.empty((count, gpt.sequence + 1), dtype=np.int64)
        for at, source in enumerate(self.sources):
            mine = chosen == at
            windows = _windows(source, numbers[mine], gpt.sequence, f"{seed}/{at}")
            check_vocabulary(windows, gpt.vocab, source.name, gpt.name)
            found[mine] = windows
        return found

    def first_windows(self, gpt: GPT, first: int, count: int) -> Numbers:
        """Windows in the order of the files, for an evaluation; a TextError if there are fewer."""
        left, found = first, []
        for source in self.sources:
            there = source.samples(gpt.sequence)
            numbers = np.arange(min(left, there), min(left + count, there))
            found.append(source.windows(numbers, gpt.sequence))
            check_vocabulary(found[-1], gpt.vocab, source.name, gpt.name)
            left, count = max(left - there, 0), count - len(numbers)
        assert not count, "checked before the run"
        return np.concatenate(found)


def mixture_of(weights: Sequence[float]) -> Mixture:
    """The cycle in which at every point each source has its share, as nearly as can be: next comes
    the one that lacks most of it. Weights count to a ten-thousandth of their sum.

    Source: NVIDIA/Megatron-LM, megatron/core/datasets/helpers.cpp, build_blending_indices.
    """
    shares = np.asarray(weights) / sum(weights)
    length = CYCLE if len(weights) > 1 else 1
    order, before = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=np.int64)
    counts = np.zeros(len(weights), dtype=np.int64)
    for place in range(length):
        order[place] = chosen = int(np.argmax(shares * (place + 1) - counts))
        before[place] = counts[chosen]
        counts[chosen] += 1
    return Mixture(order, before, counts)


def _windows(source: Tokens, numbers: Numbers, sequence: int, key: str) -> Numbers:
    epochs, within = np.divmod(numbers, source.samples(sequence))
    places = np.empty_like(numbers)
    for epoch in np.unique(epochs):
        mine = epochs == epoch
        places[mine] = shuffled(within[mine], source.samples(sequence), f"{key}/{epoch}")
    return source.windows(places, sequence)
