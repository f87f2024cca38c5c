"""The expected time of a run by formulas, and the interval between saves that makes it shortest.

Letters: L rate of failures, M = 1/L, t interval of training between saves, b stall and w write of a
save, R restart, D detection.

With exponential failures every restart begins anew, so the run is a renewal process. A restart,
which failures strike too, takes r = (e^LR - 1) (M + D). From a restart the first durable save is
t + w away, from a durable save the next is t + b away, and a failure on the way costs D + r and the
way from a restart; so from a restart it takes A = (e^L(t+w) - 1) (M + D + r), and between durable
saves B = (1 - e^-L(t+b)) (M + D + r + A). With b = w this is the formula of Bougeret et al.
Waiting for spares is a loss system: it neither queues failures nor remembers them (`erlang_b`).

In a chain of jobs, what is left of a job's time T after i failures is T - iD less i exponential
times. So the chance that n failures come before the limit, the last attempt having got past a
moment x of its own, is e^-Lx Q(n, L(T - iD - x)), Q(n, m) being a Poisson distribution's chance of
n or more where m are expected, p(n, m) that of n. A save that is durable d after the attempt began
keeps t of an attempt that fails later, which is such a chance with n = i + 1. An attempt that
reaches the limit keeps all that it trained up to T - w: of the t seconds before d the mean is
(e^-Lb p(i + 1, L(T - iD - b)) - e^-Ld p(i + 1, L(T - iD - d))) / L with b = d - t. These sums over
saves and spares are exact for one job. A run is then as many jobs as its training needs, the last
of them shorter. The cost is an array over saves for each pair of spares.

How far this is from lives of the run: tests/simulator/goodput/test_life.py.

Sources: J. W. Young, A first order approximation to the optimum checkpoint interval (CACM 17,
1974); J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps
(FGCS 22, 2006); M. Bougeret et al., Checkpointing strategies for parallel jobs (SC11), section 3.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.goodput.job import Chain, GoodputError, Run

Reals = NDArray[np.float64]
GOLDEN = (math.sqrt(5) - 1) / 2
MOST_EXPONENT = 700.0  # above, e^x is no float
LEAST_EXPONENT = 1e-6  # below, a difference of reciprocals has no digits
FAR = 6.0  # standard deviations above the mean of a job's failures, which no spare is needed for
MOST_JOBS = 1e9  # of a run that makes progress
STEPS = 60  # of the golden section, each of which leaves 62 % of the range
LONG_S = 1e7  # of training, beside which a start takes no time
LEAST_SHARE = 0.01  # of a run's time in training, below which it is refused


def young_interval_s(run: Run) -> float:
    """Young's interval: sqrt(2 b M), with the stall of a save in place of its time."""
    if not run.failures_per_s:
        return math.inf
    return math.sqrt(2 * run.stall_s / run.failures_per_s)


def daly_interval_s(run: Run) -> float:
    """Daly's interval: sqrt(2 b M) (1 + sqrt(b/2M)/3 + b/18M) - b for b < 2 M, else M."""
    if not run.failures_per_s:
        return math.inf
    mean_s = 1 / run.failures_per_s
    half = run.stall_s / (2 * mean_s)
    if half >= 1:
        return mean_s
    return young_interval_s(run) * (1 + math.sqrt(half) / 3 + half / 9) - run.stall_s


def expected_s(run: Run) -> float:
    """The mean time of the run, infinite where it makes no progress."""
    if run.chain is not None:
        return _chained(run, run.chain)
    return _unlimited(run) / (1 - waiting_share(run))


def effective_share(run: Run) -> float:
    """Training that stays, over the time of the run (effective training time ratio, ETTR)."""
    return run.work_s / expected_s(run)


def check_progress(run: Run) -> None:
    """Refuse a run that hardly makes progress, which no draw would finish; a run of few steps,
    most of whose time is its start, is none."""
    long = replace(run, work_s=max(run.work_s, LONG_S))
    if effective_share(long) < LEAST_SHARE:
        raise GoodputError(
            f"less than {LEAST_SHARE:.0%} of the time would be training that stays; "
            f"{_saved_too_slowly(run) or 'save more often'}, restart faster, or take fewer nodes"
        )


def _saved_too_slowly(run: Run) -> str:
    """What to say of saves that take longer than a run goes without a failure, or as long as the
    training between them."""
    mean_s = 1 / run.failures_per_s if run.failures_per_s else math.inf
    if run.write_s <= min(mean_s, run.interval_s):
        return ""
    return f"a save takes {run.write_s / 3600:,.1f} hours: save to faster storage"


def best_interval_s(run: Run, least_s: float) -> float:
    """The interval of the shortest expected run, at least `least_s` and what a save takes."""
    low = max(least_s, (run.write_s - run.stall_s) * (1 + 1e-9), 1e-3)
    high = max(min(run.work_s, _longest(run)), low)
    low, high = math.log(low), math.log(high)
    for _ in range(STEPS):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        if _with_interval(run, left) <= _with_interval(run, right):
            high = right
        else:
            low = left
    return math.exp((low + high) / 2)


def waiting_share(run: Run) -> float:
    """The share of time in which the run waits for a node to be repaired: all spares and one more
    are broken. Failures come at a rate of L/(1 + L D) while it does not wait."""
    if run.pool is None or not run.failures_per_s:
        return 0.0
    rate = run.failures_per_s / (1 + run.failures_per_s * run.detection_s)
    return erlang_b(run.pool.nodes + 1, rate * run.pool.repair_s)


def erlang_b(servers: int, load: float) -> float:
    """The share of time in which all servers of a loss system are busy.

    Source: A. K. Erlang (1917), by the recursion 1/B(n) = 1 + n/(a B(n-1)), B(0) = 1.
    """
    if not load:
        return 0.0
    inverse = 1.0
    for busy in range(1, servers + 1):
        inverse = 1 + inverse * busy / load
        if math.isinf(inverse):
            return 0.0
    return 1 / inverse


def _with_interval(run: Run, logarithm: float) -> float:
    return expected_s(replace(run, interval_s=math.exp(logarithm)))


def _longest(run: Run) -> float:
    """An interval longer than the best one: ten times a failure's distance, or a job's time."""
    bounds = [10 / run.failures_per_s if run.failures_per_s else math.inf]
    if run.chain is not None:
        bounds.append(run.chain.walltime_s)
    return min(bounds)


def _unlimited(run: Run) -> float:
    """The mean time without waits for spares: a restart, A for the first save and B for others."""
    rate, whole = run.failures_per_s, run.work_s / run.interval_s
    first = run.interval_s + run.write_s
    if rate * (first + run.restart_s) > MOST_EXPONENT:
        return math.inf
    if not rate:
        saves = max(math.ceil(whole) - 1, 0)
        return run.restart_s + run.work_s + saves * run.stall_s + run.write_s
    back = 1 / rate + run.detection_s
    restart = math.expm1(rate * run.restart_s) * back
    from_restart = math.expm1(rate * min(first, run.work_s + run.write_s)) * (back + restart)
    between = -math.expm1(-rate * run.segment_s) * (back + restart + from_restart)
    return restart + from_restart + max(whole - 1, 0.0) * between


def _chained(run: Run, chain: Chain) -> float:
    """The mean time of a chain of jobs, infinite where they keep nothing."""
    kept_s, taken_s = _kept(run, chain), _taken(run, chain)
    if run.work_s > MOST_JOBS * kept_s:
        return math.inf
    whole = max(math.ceil(run.work_s / kept_s - 1e-9) - 1, 0)
    rest_s = run.work_s - whole * kept_s
    saves = max(math.ceil(rest_s / run.interval_s - 1e-9) - 1, 0)
    last_s = min(run.restart_s + rest_s + saves * run.stall_s + run.write_s, taken_s)
    return whole * (taken_s + chain.queue_s) + last_s


def _kept(run: Run, chain: Chain) -> float:
    """The training that a job keeps, in the mean over its failures."""
    rate, kept_s = run.failures_per_s, 0.0
    since = np.arange(run.restart_s + run.write_s, chain.walltime_s, run.segment_s)
    if _is_quiet(run, chain):
        return float(np.minimum(chain.walltime_s - since, run.interval_s).sum())
    for number in range(_spares(run, chain) + 1):
        left_s = chain.walltime_s - number * run.detection_s
        begins = since[since < left_s]
        durable = (begins + run.interval_s)[begins + run.interval_s < left_s]
        failed = _at_least(number + 1, rate * (left_s - durable))
        kept_s += run.interval_s * float(np.exp(-rate * durable) @ failed)
        for sign, at in ((1, begins), (-1, durable)):
            reached = _exactly(number + 1, rate * (left_s - at))
            kept_s += sign * float(np.exp(-rate * at) @ reached) / rate
    return kept_s


def _taken(run: Run, chain: Chain) -> float:
    """The time that a job takes: up to its limit, or until the failure is noticed for which it has
    no spare."""
    most = _spares(run, chain) + 1
    noticed_s = most * run.detection_s
    if _is_quiet(run, chain) or noticed_s >= chain.walltime_s:
        return chain.walltime_s
    mean = np.array([run.failures_per_s * (chain.walltime_s - noticed_s)])
    failures = sum(float(_at_least(number, mean)[0]) for number in range(1, most + 1))
    return noticed_s + failures / run.failures_per_s


def _is_quiet(run: Run, chain: Chain) -> bool:
    """Whether hardly any job has a failure."""
    return run.failures_per_s * chain.walltime_s < LEAST_EXPONENT


def _spares(run: Run, chain: Chain) -> int:
    """The spares of a job that it may need."""
    mean = run.failures_per_s * chain.walltime_s
    return min(chain.spares, math.ceil(mean + FAR * math.sqrt(mean)))


def _exactly(number: int, means: Reals) -> Reals:
    """The chance of that number in a Poisson distribution, for each of its positive means."""
    found: Reals = np.exp(number * np.log(means) - means - math.lgamma(number + 1))
    return found


def _at_least(number: int, means: Reals) -> Reals:
    """The chance of that number or more."""
    return 1 - sum((_exactly(each, means) for each in range(number)), np.zeros_like(means))


def lost_s(run: Run) -> float:
    """Training that a failure between saves throws away: what came after the last save, and while
    one was written."""
    length, rate = run.segment_s, run.failures_per_s
    since = length / 2
    if rate * length > LEAST_EXPONENT:
        since = 1 / rate - length / math.expm1(min(rate * length, MOST_EXPONENT))
    return since + run.write_s - run.stall_s
