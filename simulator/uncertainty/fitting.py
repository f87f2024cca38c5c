"""The probability that a run fits into a device's memory, from measured peaks of comparable runs.

A run needs more or less than the predicted peak: a model of tensors misses some, and PyTorch's
caching allocator cannot use all that it reserves. `peaks.csv` (written by `python -m
tools.peaks`) has the logarithm of needed over predicted bytes for each published run
that says its peak, in the terms in which it was measured. Only allocated peaks count here: reserved
bytes, and bytes that the device held, include a cache that the allocator gives back when memory
runs out. A run whose predicted peak is `peak_bytes` fits if its logarithm of needed over predicted
bytes is below ln(capacity / peak). The capacity is the device's memory less what is known to lie
beside tensors: the driver's context and communicators (the machine's reserve) and the libraries'
workspaces. So

    P(fits) = F(ln(capacity / peak)),

F the distribution of these logarithms. P(fits) falls with the peak, and the largest peak with
P >= p is capacity * exp(-quantile(p)): for a search a limit in bytes.

A run at distance d (by stack and by kind of model) counts e^-d, and all runs of one source
together count as much as the nearest of them, as in `step_range.py`. Each is blurred by Student's t
distribution with two degrees of freedom, which has heavy tails because some published peaks are
misread. Nothing here is fitted to runs that ran out of memory.

Source of the weights: weighted conformal prediction (Barber et al., Conformal prediction beyond
exchangeability, arXiv 2202.13415, section 3). Of 24 sets of distances these give the highest mean
log-likelihood of each source's peaks, predicted from those of all others; of seven blurs this is
the narrowest within 0.05 of the highest (`python -m tools.peaks --likelihood`).
Not modelled: survivorship. Only runs that fitted have published peaks, so those that needed more
memory than there was are missing.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.stacks.stack import Stack
from simulator.uncertainty.step_range import weights_of
from topologies.files.reading import shipped_text
from topologies.records import record
from topologies.session import session_cached

SURE, UNLIKELY = 0.9, 0.1  # P(fits) from which on a run fits, and down to which it does not
VERDICTS = FITS, TIGHT, DOES_NOT_FIT = "fits", "tight", "does not fit"
LEAST, MOST = 0.01, 0.99  # P(fits) that can be asked for: beyond, few peaks say anything
BLUR = 0.08  # scale of the distribution that each peak is blurred by, in logarithms
OTHER_STACK, OTHER_STACK_FAMILY, OTHER_MODEL = 1.0, 2.0, 0.5  # distances
TABLE = "peaks"
ALLOCATED = "allocated"  # the measure of a peak that a run cannot do without
GRID = tuple(round(-1.5 + 0.01 * n, 2) for n in range(301))  # logarithms at which F is kept
Reals = NDArray[np.float64]


class Kind(NamedTuple):
    """What of a job decides which peaks it is compared with: its stack, that one's family, and
    whether its model has experts. Plans of one question are of one kind."""

    stack: str
    stack_family: str
    experts: bool


def kind_of(stack: Stack, *, experts: bool) -> Kind:
    """The kind of a stack's jobs for models with `experts`, or without."""
    return Kind(stack.name, stack.family or stack.name, experts)


class MeasuredPeak(NamedTuple):
    """A published run with its peak: the logarithm of needed over predicted bytes, and what was
    measured."""

    source: str
    kind: Kind
    need: float
    measure: str = ALLOCATED


@record
class PeakErrors:
    """F: the `share` of runs that need no more than e^`log` times their predicted peak, at the
    values of both; between them F is straight."""

    log: tuple[float, ...] = field(repr=False)
    share: tuple[float, ...] = field(repr=False)
    peaks: int = 0
    sources: int = 0

    def share_below(self, log: float) -> float:
        """F at a logarithm."""
        return float(np.interp(log, self.log, self.share))

    def quantile(self, share: float) -> float:
        """The logarithm at which F is that share."""
        return float(np.interp(share, self.share, self.log))

    def p_fits(self, peak_bytes: int, capacity_bytes: int) -> float:
        """The probability that a run of such a predicted peak fits into so much memory."""
        if peak_bytes <= 0 or capacity_bytes <= 0:
            return float(capacity_bytes > 0)
        return self.share_below(math.log(capacity_bytes / peak_bytes))

    def most_bytes(self, capacity_bytes: int, p: float) -> int:
        """The largest predicted peak of a run that fits into so much memory with probability p."""
        return int(capacity_bytes * math.exp(-self.quantile(p)))

    def mixed(self, other: PeakErrors, weight: float) -> PeakErrors:
        """The distribution that is the other one with a probability of `weight`, on the same
        values."""
        assert self.log == other.log, "both are on GRID"
        pairs = zip(self.share, other.share, strict=True)
        return PeakErrors(self.log, tuple((1 - weight) * a + weight * b for a, b in pairs))


# Of memory that was counted, not predicted: a run needs just its peak.
EXACT = PeakErrors((-1e-12, 0.0), (0.0, 1.0))


def distribution(needs: Sequence[float] | Reals, weights: Reals, blur: float = BLUR) -> PeakErrors:
    """F of some weighted logarithms, each blurred; of Student's t with two degrees of freedom
    F(x) = 1/2 + x / (2 sqrt(2 + x^2))."""
    x = (np.array(GRID)[:, None] - np.asarray(needs)[None, :]) / blur
    each = 0.5 + x / (2 * np.sqrt(2 + x * x))
    share = each @ (weights / weights.sum())
    return PeakErrors(GRID, tuple(share.tolist()))


class MeasuredPeaks:
    """The published runs with their peaks."""

    def __init__(self, rows: Sequence[MeasuredPeak], blur: float = BLUR) -> None:
        self.rows, self.blur = tuple(rows), blur
        self._needs = np.array([row.need for row in rows])
        self._sources = np.array([row.source for row in rows])
        self._source_number = np.unique(self._sources, return_inverse=True)[1].astype(np.int64)

    def distances(self, kind: Kind) -> Reals:
        """How unlike each run is to those of a kind."""
        return np.array([_distance(row.kind, kind) for row in self.rows])

    def errors_of(self, kind: Kind, *, without: str = "") -> PeakErrors:
        """The distribution for jobs of a kind, from the runs of all sources but one."""
        counted = self._sources != without
        weights = weights_of(self.distances(kind), self._source_number, counted)
        found = distribution(self._needs, weights, self.blur)
        return PeakErrors(
            found.log, found.share, int(counted.sum()), len({*self._sources[counted]})
        )

    def errors_within_a_source(self) -> PeakErrors:
        """The distribution for a job of which a run of the same source and kind was measured: of
        each run's difference from the median of the others of its source and kind, with equal
        weight for each group of runs."""
        groups: dict[tuple[str, Kind], list[float]] = {}
        for row in self.rows:
            groups.setdefault((row.source, row.kind), []).append(row.need)
        needs, weights = [], []
        for own in groups.values():
            for at in range(len(own) if len(own) > 1 else 0):
                needs.append(own[at] - float(np.median(np.delete(own, at))))
                weights.append(1 / len(own))
        return distribution(needs, np.array(weights), self.blur)


def _distance(one: Kind, other: Kind) -> float:
    alike = one.stack_family == other.stack_family
    stacks = (OTHER_STACK if alike else OTHER_STACK_FAMILY) * (one.stack != other.stack)
    return stacks + OTHER_MODEL * (one.experts != other.experts)


@session_cached(64)
def peak_errors(kind: Kind) -> PeakErrors:
    """F for jobs of a kind, from the peaks that come with the package."""
    return measured_peaks().errors_of(kind)


@session_cached(1)
def peak_errors_within_a_source() -> PeakErrors:
    """F for jobs of which another run is measured."""
    return MeasuredPeaks(shipped_peaks()).errors_within_a_source()


@session_cached(1)
def measured_peaks() -> MeasuredPeaks:
    """The shipped runs whose allocated peak was measured."""
    return MeasuredPeaks([row for row in shipped_peaks() if row.measure == ALLOCATED])


def shipped_peaks() -> list[MeasuredPeak]:
    """All shipped runs with a measured peak, whatever it measures."""
    return peaks_of(shipped_text("simulator", f"uncertainty/{TABLE}.csv"))


def peaks_of(text: str) -> list[MeasuredPeak]:
    """The rows of a table as `tools/peaks.py` writes it."""
    rows: list[dict[str, Any]] = list(csv.DictReader(text.splitlines()))
    return [
        MeasuredPeak(
            row["source"],
            Kind(row["stack"], row["stack_family"], row["experts"] == "yes"),
            float(row["need"]),
            row["measure"],
        )
        for row in rows
    ]


def verdict_of(peak_bytes: int, sure_bytes: int, most_bytes: int) -> str:
    """The verdict on a peak, given the largest that fits and the largest that may."""
    if peak_bytes <= sure_bytes:
        return FITS
    return TIGHT if peak_bytes <= most_bytes else DOES_NOT_FIT


def words_of(p_fits: float) -> str:
    """The probability that a run fits in words, to a tenth but near the ends.

    >>> words_of(0.72), words_of(0.968), words_of(0.0004)
    ('about 70 % likely to fit', '97 % likely to fit', 'less than 1 % likely to fit')
    """
    if UNLIKELY < p_fits < SURE:
        return f"about {round(10 * p_fits):d}0 % likely to fit"
    count = min(round(100 * p_fits), 99)
    return f"{count:d} % likely to fit" if count else "less than 1 % likely to fit"
