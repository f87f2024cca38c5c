"""Drawn steps, of all options; those of one stage simulated with what repeats left out and without.

`python -m tests.simulator.drawn_steps 2000` says how many of so many differ, if only by a tick. Of
pipelines nothing is left out: they are held against their ops (`test_pipeline.py`).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from simulator.engine.whole_step import simulate_step
from simulator.result import StepResult
from tests.executor.covering import OPTIONS, Row, case, is_legal, is_refused, ranks_of
from tests.simulator.worlds import SmallCosts, SmallFabric
from topologies.session import Session
from workload.gpt import GPT
from workload.plan import Plan

BANDWIDTHS = (1e6, 3e7, 1e8, 3e8, 1e9, 1e10, 1e12)  # from bound by links to bound by compute
SHARES = (0.0, 0.2)  # of compute, that collectives beside it take
ISSUE_S = (0.0, 0.0, 1.1e-5, 2.34491932048865e-05)  # of a host, for each kernel
LAYERS = (2, 6, 25, 26, 29, 34, 40)
MICRO_BATCHES = (1, 2, 3, 4, 7, 8, 9, 12, 20, 24)
MOST_RANKS = 64


@dataclass(frozen=True)
class DrawnStep:
    """A step on a small machine."""

    gpt: GPT
    plan: Plan
    bytes_per_s: float
    share: float
    issue_s: float

    def simulated(self, *, fold: bool) -> StepResult:
        """The step of one stage, with what repeats left out or without."""
        return simulate_step(self.gpt, self.plan, self.costs, self.fabric, fold=fold)

    @property
    def costs(self) -> SmallCosts:
        """What its ops cost."""
        return SmallCosts(issue_s=self.issue_s)

    @property
    def fabric(self) -> SmallFabric:
        """Its network."""
        return SmallFabric(bytes_per_s=self.bytes_per_s, compute_share=self.share)

    def is_exact(self) -> bool:
        """Whether both are equal in all there is: every part of the time, bytes, FLOPs, memory."""
        few, whole = (self.simulated(fold=fold) for fold in (True, False))
        return replace(few, micro_batches=whole.micro_batches) == whole


def drawn_steps(seed: int) -> Iterator[DrawnStep]:
    """Steps without end, half of them pipelines."""
    chance = random.Random(seed)
    while True:
        row: Row = {name: chance.choice(values) for name, values in OPTIONS.items()}
        row["micro_batches"] = chance.choice(MICRO_BATCHES)
        if chance.random() < 0.5:
            row["pp"] = 1
        if ranks_of(row) > MOST_RANKS or is_refused(row) or not is_legal(row):
            continue
        gpt, plan = case(row)
        if plan.pp == 1 and not plan.pipeline.stage_layers:
            gpt = replace(gpt, layers=chance.choice(LAYERS))
        yield DrawnStep(
            gpt, plan, chance.choice(BANDWIDTHS), chance.choice(SHARES), chance.choice(ISSUE_S)
        )


def of_one_stage(seed: int) -> Iterator[DrawnStep]:
    """Those of them that are no pipelines."""
    return (step for step in drawn_steps(seed) if step.plan.pp == 1)


def main(count: int, seed: int = 0) -> int:
    """Print those of so many drawn steps that differ, and how many they are."""
    steps = islice(of_one_stage(seed), count)
    differ = []
    with Session():
        for step in steps:
            if not step.is_exact():
                differ.append(step)
                print(f"differs: {step}")
    print(f"{len(differ)} of {count} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    raise SystemExit(main(*map(int, sys.argv[1:])))
