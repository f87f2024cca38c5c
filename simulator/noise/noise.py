"""Noise: by how much the compute of each rank lasts longer or shorter than predicted, drawn.

Three kinds, which may be combined. The duration of every compute op on every rank is multiplied by
a factor for each:

- jitter: a factor of its own for each op and rank;
- slow devices: 1 + `slow_by` on each device that is slow, each with probability `slow_share`;
- spread: a factor for each device, the same for all of its ops of a sample.

The factors of jitter and spread are lognormal with mean 1, so that they are positive and change
nothing on average: what noise costs is waiting. `jitter` and `spread` are their standard
deviations.

Fresh numbers for every op and rank would cost ten times the rest. Factors of jitter are read from a
pool of 2 million (`POOL`), from a place drawn for each op and sample on; neighbouring ranks read
neighbouring factors. So two ops of a sample read the same stretch, shifted, where their places are
less than the ranks apart, which hardly matters: the ranks then differ.

Not modelled: noise of the network, and jitter that is alike on all devices of a node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from topologies.records import record

Factors = NDArray[np.float64]
POOL = 1 << 21  # factors; 16 MB
# What a generator is for, so that no two of one seed are the same.
_POOLED, _DEVICES, _PLACES = range(3)


@record(slots=False)
class Noise:
    """How strong the noise is, as shares of durations: see above."""

    jitter: float = 0.0
    slow_share: float = 0.0
    slow_by: float = 0.0
    spread: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """The noise as it stands in JSON."""
        return {
            "jitter": self.jitter,
            "slow_share": self.slow_share,
            "slow_by": self.slow_by,
            "spread": self.spread,
        }

    def speeds(self, seed: int, samples: Sequence[int], ranks: int) -> Factors | None:
        """A factor for each device in each sample, (samples, ranks); None if all are 1."""
        if not (self.spread or self.slow_share * self.slow_by):
            return None
        found = np.ones((len(samples), ranks))
        for row, sample in enumerate(samples):
            generator = _generator(seed, _DEVICES, sample)
            if self.spread:
                found[row] = lognormal(generator, self.spread, ranks)
            found[row, generator.random(ranks) < self.slow_share] *= 1 + self.slow_by
        return found

    def pool(self, seed: int, ranks: int) -> Factors | None:
        """The pool of the factors of jitter; None without jitter."""
        if not self.jitter:
            return None
        return lognormal(_generator(seed, _POOLED), self.jitter, max(POOL, 4 * ranks))


@record(slots=False)
class Draw:
    """The factors of some samples: `speeds` (samples, ranks), or None where devices are alike, and
    the `pool` of jitter, or None without."""

    seed: int
    samples: Sequence[int]
    speeds: Factors | None = None
    pool: Factors | None = None

    def on(self, ranks: NDArray[np.int64], stage: int, part: int, ops: int) -> StageDraw:
        """The factors for so many ops on the ranks of a stage. `part` numbers what a stage does
        one after another; the same part has the same factors again."""
        speeds = None if self.speeds is None else self.speeds[:, ranks]
        if self.pool is None:
            return StageDraw(speeds)
        windows = sliding_window_view(self.pool, len(ranks))
        places = [
            _generator(self.seed, _PLACES, sample, stage, part).integers(len(windows), size=ops)
            for sample in self.samples
        ]
        return StageDraw(speeds, windows, np.stack(places, axis=1))


@record(slots=False)
class StageDraw:
    """The factors of some ops on the ranks of a stage.

    `speeds` (samples, ranks) holds for all ops; the jitter of op i in sample s is
    `windows[places[i, s]]`.
    """

    speeds: Factors | None = None
    windows: Factors | None = None
    places: Any = None

    def jitter(self, op: int) -> Factors | None:
        """The factors of one op's jitter, (samples, ranks)."""
        if self.windows is None:
            return None
        own = self.places[op]
        if len(own) == 1:
            return np.asarray(self.windows[own[0] : own[0] + 1])
        return np.asarray(self.windows[own])


def lognormal(generator: np.random.Generator, deviation: float, count: int) -> Factors:
    """Numbers with mean 1 and that standard deviation.

    >>> numbers = lognormal(np.random.default_rng(1), 0.05, 1_000_000)
    >>> round(float(numbers.mean()), 3), round(float(numbers.std()), 3)
    (1.0, 0.05)
    """
    variance = math.log1p(deviation**2)
    found = generator.standard_normal(count)
    found *= math.sqrt(variance)
    found -= variance / 2
    return np.exp(found, out=found)


def _generator(seed: int, *purpose: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=purpose))
