"""The expected time of a run as a chain of jobs, from what one job keeps and takes on average.

With T seconds of its time limit and s spares left, an attempt fails after x < T with density
L e^-Lx, keeps what is durable by then and goes on with T - x - D and s - 1; or it reaches the limit
with chance e^-LT, and its last save keeps what it trained. So the training that a job keeps, and
the time it takes, follow from those with one spare less by one integral over x, taken on a grid of
T. A run is as many jobs as its training needs, the last of them shorter.

How far this is from a life of the run: tests/simulator/goodput/test_life.py.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from simulator.goodput.job import Chain, Run

Reals = NDArray[np.float64]
GRID = 240  # moments of a job's time limit
FAR = 6.0  # standard deviations above the mean of a job's failures, which no spare is needed for


def chained_s(run: Run, chain: Chain) -> float:
    """The mean time of the chain, infinite where its jobs keep nothing."""
    kept_s, taken_s = _job(run, chain)
    if kept_s <= 0 or run.work_s / kept_s > 1e9:
        return math.inf
    whole = max(math.ceil(run.work_s / kept_s - 1e-9) - 1, 0)
    rest_s = run.work_s - whole * kept_s
    saves = max(math.ceil(rest_s / run.interval_s - 1e-9) - 1, 0)
    stalled_s = saves * run.stall_s
    last_s = min(run.restart_s + rest_s + stalled_s + run.write_s, taken_s)
    return whole * (taken_s + chain.queue_s) + last_s


def _job(run: Run, chain: Chain) -> tuple[float, float]:
    """The training that a job keeps, and the time it takes, both in the mean."""
    limits = np.linspace(0.0, chain.walltime_s, GRID + 1)
    mean = run.failures_per_s * chain.walltime_s
    spares = min(chain.spares, math.ceil(mean + FAR * math.sqrt(mean)))
    own_kept, own_taken = (
        _kept_by_failure(run, limits) + _kept_by_limit(run, limits),
        _up(run, limits),
    )
    kept, taken = own_kept, own_taken
    for _ in range(spares):
        kept, taken = (
            own_kept + _goes_on(run, limits, kept),
            own_taken + _goes_on(run, limits, taken),
        )
    return float(kept[-1]), float(taken[-1])


def _kept_by_failure(run: Run, limits: Reals) -> Reals:
    """What attempts keep that fail: for each save, the chance of a failure between it and T."""
    last = (limits[-1] - run.restart_s - run.write_s + run.stall_s) / run.segment_s
    saves = np.arange(1, max(math.floor(last), 0) + 1)
    durable_s = run.restart_s + saves * run.segment_s - run.stall_s + run.write_s
    chances = np.exp(-run.failures_per_s * durable_s)
    until = np.searchsorted(durable_s, limits, side="right")
    sums: Reals = np.concatenate([np.zeros(1), np.cumsum(chances)])
    found: Reals = run.interval_s * (sums[until] - until * np.exp(-run.failures_per_s * limits))
    return found


def _kept_by_limit(run: Run, limits: Reals) -> Reals:
    """What attempts keep that reach T, by the save before it."""
    trained_s = np.maximum(limits - run.restart_s - run.write_s, 0.0)
    whole = np.floor(trained_s / run.segment_s)
    partial = np.minimum(trained_s - whole * run.segment_s, run.interval_s)
    found: Reals = np.exp(-run.failures_per_s * limits) * (whole * run.interval_s + partial)
    return found


def _up(run: Run, limits: Reals) -> Reals:
    """The time to the first failure or the limit, and its detection."""
    rate = run.failures_per_s
    if not rate:
        return limits
    failed = -np.expm1(-rate * limits)
    found: Reals = failed / rate + np.minimum(run.detection_s * failed, limits - failed / rate)
    return found


def _goes_on(run: Run, limits: Reals, after: Reals) -> Reals:
    """The mean over failures of what comes after them with the time that is left."""
    rate, step = run.failures_per_s, limits[1]
    chances = np.exp(-rate * limits[:-1]) - np.exp(-rate * limits[1:])
    left = limits[:, None] - (limits[None, :-1] + step / 2) - run.detection_s
    found: Reals = np.where(left > 0, np.interp(left, limits, after), 0.0) @ chances
    return found
