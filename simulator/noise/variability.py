"""How far steps vary with noise: drawn samples of a step on every rank, and what one slow device
costs.

The split of the excess. The mean step of all samples is longer than the step without noise. On each
rank that time is made up of its compute stream's own ops, of its waiting at collectives by axes and
for other stages, and of what is left from its end to the step's (`Played`). The split says which of
these grew, as the mean of all ranks and samples: the growth at an axis is the time for which ranks
stand still there because another member of their group is late. So an axis with a large share
passes the delay of few ranks on to many. All parts together are the excess, exactly.

Cost: one execution of all ops on all ranks for each sample (`clocks.py`), one after another. Two
threads take longer than one: numpy's calls are too short to share the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from simulator.engine.ticks import TICKS_PER_S
from simulator.noise.all_ranks import all_ranks
from simulator.noise.clocks import MOST_EXACT_TICKS
from simulator.noise.noise import Draw, Noise
from simulator.noise.played import END, OWN, AllRanks, Played
from simulator.noise.stage_ranks import Clocks
from simulator.predict import op_costs, plan_forms
from simulator.ranks.fabric import fabric_of
from simulator.stacks.stack import EXECUTOR, Stack
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.records import record
from topologies.session import in_session
from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.plan import Plan

SLOWER_BY = 0.1  # of the one slow device, where none was named
DEVICES = 8  # that are tried as the slow one
WIDTH = 1 << 15  # clocks side by side: 256 KB, which a core's cache holds
CALL = 4_000  # clocks that take as long as calling numpy for them
MOST_CLOCKS = 10**12  # some twenty minutes
MOST_SLOTS = 250_000
Progress = Callable[[int, int], None]


@record
class SlowDevice:
    """The step with one device slower by a share in all of its compute: the device, of those that
    were tried, with which it is longest."""

    rank: int
    slower_by: float
    step_s: float


@record(slots=False)
class Variability:
    """Steps drawn with noise: their times, and by what of a rank's time they are longer on average.

    `excess_s` has the latter, in seconds: axes, `pipe`, "own ops" and "end", as in `Played`.
    """

    noise: Noise
    seed: int
    noise_free_s: float
    steps_s: Sequence[float]
    excess_s: Mapping[str, float]
    slow_device: SlowDevice

    @property
    def median_s(self) -> float:
        """The step that half of the samples are shorter than."""
        return float(np.median(self.steps_s))

    @property
    def interval_s(self) -> tuple[float, float]:
        """Between which times nine of ten samples lie."""
        low, high = np.quantile(self.steps_s, [0.05, 0.95]).tolist()
        return low, high

    @property
    def mean_cost(self) -> float:
        """By which share the mean step is longer than without noise."""
        return fmean(self.steps_s) / self.noise_free_s - 1

    @property
    def slow_device_cost(self) -> float:
        """By which share one slow device lengthens the step."""
        return self.slow_device.step_s / self.noise_free_s - 1

    @property
    def amplifier(self) -> str | None:
        """The axes at whose collectives ranks wait longest for late ones; None without noise."""
        waits = {key: each for key, each in self.excess_s.items() if key not in (OWN, END)}
        largest = max(waits, key=lambda key: waits[key], default=None)
        return largest if largest is not None and waits[largest] > 0 else None

    def as_dict(self) -> dict[str, Any]:
        """The answer as it stands in JSON."""
        low, high = self.interval_s
        return {
            "noise": self.noise.as_dict(),
            "seed": self.seed,
            "samples": len(self.steps_s),
            "noise_free_step_s": self.noise_free_s,
            "median_step_s": self.median_s,
            "interval_step_s": [low, high],
            "mean_cost": self.mean_cost,
            "excess_s": dict(self.excess_s),
            "amplifier": self.amplifier,
            "one_slow_device": {
                "rank": self.slow_device.rank,
                "slower_by": self.slow_device.slower_by,
                "step_s": self.slow_device.step_s,
                "cost": self.slow_device_cost,
            },
            "steps_s": list(self.steps_s),
        }


@in_session
def variability(
    gpt: GPT,
    plan: Plan,
    machine: Machine,
    noise: Noise,
    *,
    samples: int,
    seed: int = 0,
    placement: Placement | None = None,
    op_seconds: Mapping[str, float] | None = None,
    stack: Stack = EXECUTOR,
    progress: Progress = lambda done, of: None,
) -> Variability:
    """Draw so many samples of the step that `predict` predicts from the same arguments.

    The same seed gives the same answer.
    """
    if plan.pp > 1 and plan.pp * plan.micro_batches > MOST_SLOTS:
        raise _too_much(f"{plan.micro_batches:,} micro-batches on {plan.pp} stages")
    fabric = fabric_of(machine, plan.grid.ranks, placement)
    kernels = stack.kernels(gpt, plan, machine)
    costs = op_costs(plan, machine, fabric.ranks_per_node, op_seconds, kernels)
    forms = plan_forms(gpt, plan, costs)
    step = all_ranks(gpt, plan, costs, fabric, forms=forms, behaviour=kernels.behaviour)
    return drawn(step, plan, noise, samples=samples, seed=seed, progress=progress)


def drawn(
    step: AllRanks,
    plan: Plan,
    noise: Noise,
    *,
    samples: int,
    seed: int,
    progress: Progress = lambda done, of: None,
) -> Variability:
    """Draw samples of a step that was simulated."""
    ranks = plan.grid.ranks
    width = max(1, WIDTH * plan.pp // ranks)
    tried = _spaced(step.devices)
    _check_size(step, plan, samples + len(tried) + 1, width)
    pool = noise.pool(seed, ranks)
    slower_by = noise.slow_by or SLOWER_BY

    def play(numbers: Sequence[int]) -> Played:
        return step.play(Draw(seed, numbers, noise.speeds(seed, numbers, ranks), pool))

    def play_slow(devices: Sequence[int]) -> Played:
        speeds = np.ones((len(devices), ranks))
        speeds[np.arange(len(devices)), devices] += slower_by
        return step.play(Draw(seed, range(len(devices)), speeds))

    plain = _plain(step)
    jobs = [*_batches(tried, width, play_slow), *_batches(range(samples), width, play)]
    together = _joined(list(_executed(jobs, progress)))
    slow, steps = together.ticks[: len(tried)], together.ticks[len(tried) :]
    worst = int(slow.argmax())
    return Variability(
        noise,
        seed,
        _seconds(plain.ticks[0]),
        [_seconds(ticks) for ticks in steps.tolist()],
        _excess({key: each[len(tried) :] for key, each in together.parts.items()}, plain),
        SlowDevice(tried[worst], slower_by, _seconds(slow[worst])),
    )


def _plain(step: AllRanks) -> Played:
    """The step without noise."""
    plain = step.play(Draw(0, (0,)))
    if plain.ticks[0] > MOST_EXACT_TICKS:
        raise PlanCannotRunError(
            "a step of more than 2.5 hours is not drawn with noise, whose clocks count no further "
            "picoseconds; give a smaller batch or leave --samples out"
        )
    return plain


def _spaced(devices: Sequence[int]) -> list[int]:
    """At most so many of the devices, evenly spaced, the first and the last among them."""
    places = np.linspace(0, len(devices) - 1, min(DEVICES, len(devices))).round()
    return [devices[place] for place in places.astype(np.int64).tolist()]


def _check_size(step: AllRanks, plan: Plan, executions: int, width: int) -> None:
    calls = -(-executions // width) * plan.pp * CALL
    clocks = step.ops * (plan.grid.ranks * executions + calls)
    if clocks > MOST_CLOCKS:
        raise _too_much(f"{step.ops:,} ops on {plan.grid.ranks:,} ranks, {executions:,} times over")


def _too_much(what: str) -> PlanCannotRunError:
    return PlanCannotRunError(
        f"{what}, are more than noise is drawn for; give fewer --samples, a larger mbs or "
        "a smaller batch"
    )


Job = Callable[[], Played]


def _batches(
    numbers: Sequence[int], width: int, play: Callable[[Sequence[int]], Played]
) -> list[Job]:
    """Executions of so many samples at once."""

    def job(own: Sequence[int]) -> Job:
        return lambda: play(own)

    return [job(numbers[at : at + width]) for at in range(0, len(numbers), width)]


def _executed(jobs: Sequence[Job], progress: Progress) -> Iterator[Played]:
    for done, job in enumerate(jobs):
        progress(done, len(jobs))
        yield job()


def _joined(played: Sequence[Played]) -> Played:
    keys = dict.fromkeys(key for each in played for key in each.parts)
    parts = {
        key: np.concatenate([each.parts.get(key, np.zeros_like(each.ticks)) for each in played])
        for key in keys
    }
    return Played(np.concatenate([each.ticks for each in played]), parts)


def _excess(noisy: Mapping[str, Clocks], plain: Played) -> dict[str, float]:
    """By what the mean step is longer; what is less than half a tick is rounding, and counts as
    nothing."""
    found = {key: float(ticks.mean()) - float(plain.parts[key][0]) for key, ticks in noisy.items()}
    grown = {key: _seconds(ticks if abs(ticks) >= 0.5 else 0.0) for key, ticks in found.items()}
    return dict(sorted(grown.items(), key=lambda item: -item[1]))


def _seconds(ticks: float) -> float:
    return float(ticks) / TICKS_PER_S
