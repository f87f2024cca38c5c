"""How long the executor's walk over a program takes an op: `python -m benchmarks.executor_walk`.

Kernels, collectives and messages are replaced by functions that do nothing, so what is left is the
walk: operands by their slots, tensors for buffers that begin (on a CPU from the pool of freed
memory), waiting and freeing. Then collectives and messages go to torch's fake backend, which
moves nothing, so that what torch.distributed's own Python takes is in the time too.

Rows have the CPU time of the process in a step, divided by the step's ops: the least and the
median of many steps, of the walk alone and of all. One process stands for the first rank of the
first stage.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks._command import Row, benchmark
from executor.collectives import CALLS
from executor.groups import ProcessGroups
from executor.kernels import KERNELS
from executor.launching.task_specs import AdamW
from executor.timing import NoRecorder
from executor.train import Trainer
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program

KERNELS_OF = "executor.prepared.KERNELS"
STEPS, WARM_UP_STEPS = 200, 5
MODEL = "tiny-2m"
COLUMNS = ("plan", "ops", "walk_us", "walk_median_us", "all_us", "all_median_us")
PLANS = (
    "dp=1,mbs=2",
    "x=2,y=2,z=2,dp=2,zero=1,mbs=1",
    "pp=2,dp=2,zero=3,mbs=1",
)


class Done:
    """A work that is over."""

    def wait(self) -> None:
        """Return at once."""


class Alone(ProcessGroups):
    """The groups of a rank whose others are not there to compare their programs with its own."""

    def check(self, program: Program, order: Sequence[int]) -> None:
        """Check nothing."""


def nothing(*_: Any, **__: Any) -> None:
    """Stand for a kernel."""


def at_once(*_: Any, **__: Any) -> Done:
    """Stand for a collective or message."""
    return Done()


@contextmanager
def without_communication() -> Iterator[None]:
    """Issue no collective and no message in here."""
    with (
        patch.dict(CALLS, dict.fromkeys(CALLS, at_once)),
        patch.object(dist, "isend", at_once),
        patch.object(dist, "irecv", at_once),
    ):
        yield


@contextmanager
def trainer(gpt: GPT, plan: Plan) -> Iterator[Trainer]:
    """What trains without kernels on the first rank of a plan."""
    dist.init_process_group("fake", rank=0, world_size=plan.grid.ranks, store=FakeStore())
    try:
        with patch(KERNELS_OF, dict.fromkeys(KERNELS, nothing)):
            groups, cpu = Alone(0, 60.0), torch.device("cpu")
            trained = Trainer(lower(gpt, plan, 0), groups, rank=0, device=cpu, adamw=AdamW())
            yield trained
    finally:
        dist.destroy_process_group()


def op_us(trained: Trainer, steps: int) -> list[float]:
    """Microseconds an op, the least and the median of many steps."""
    seconds = []
    for _ in range(WARM_UP_STEPS + steps):
        started = time.process_time()
        trained._play(trained.place, NoRecorder())
        seconds.append(time.process_time() - started)
    ops = len(trained.program.ops)
    return [f(seconds[WARM_UP_STEPS:]) / ops * 1e6 for f in (min, statistics.median)]


@benchmark(*COLUMNS)
def main(*, smallest: bool) -> list[Row]:
    """How long the executor's walk over a program takes an op."""
    torch.set_num_threads(1)
    plans, model, steps = (PLANS[:1], "tiny-30k", 2) if smallest else (PLANS, MODEL, STEPS)
    rows = []
    for text in plans:
        with trainer(find_model(model), parse_plan(text, batch=8)) as trained:
            with without_communication():
                walk = op_us(trained, steps)
            found = (text, len(trained.program.ops), *walk, *op_us(trained, steps))
        rows.append(dict(zip(COLUMNS, found, strict=True)))
    return rows


if __name__ == "__main__":
    main()
