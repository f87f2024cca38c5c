"""Which engine simulates: `streams.py` on SimPy's clock, or the same recurrence compiled.

Both give the same starts and ends, to the tick (tests/simulator/test_engines.py). The compiled one
is built with the package where there is a C compiler; where there is none, SimPy's serves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from simulator.engine import compiled
from simulator.engine.core import is_built
from simulator.engine.streams import Engine, RankTask
from simulator.ranks.classes import RankClasses
from workload.errors import PlanCannotRunError, PlanError
from workload.sizes.arrays import Ticks

COMPILED, SIMPY = "compiled", "simpy"
ENGINES = (COMPILED, SIMPY)
VARIABLE = "SIMGPT_ENGINE"
MOST_TICKS = 2**63 - 1
TOO_LONG = "such a step takes more than 106 days: too long a time"

_CHOSEN: ContextVar[str] = ContextVar("engine", default="")


def engine_name() -> str:
    """The engine in use: the one chosen, or the environment's, or else the fastest there is."""
    chosen = _CHOSEN.get() or os.environ.get(VARIABLE, "")
    if chosen not in ("", *ENGINES):
        raise PlanError(f"there is no engine {chosen}, only {' and '.join(ENGINES)}")
    if chosen == COMPILED and not is_built():
        raise PlanCannotRunError(
            "the compiled engine is not there: simgpt was installed without a C compiler; "
            "install one and then simgpt again, or choose the engine simpy"
        )
    return chosen or (COMPILED if is_built() else SIMPY)


def is_makeshift() -> bool:
    """Whether SimPy's engine serves because the compiled one is not there, not because it was
    chosen."""
    return not is_built() and not (_CHOSEN.get() or os.environ.get(VARIABLE, ""))


@contextmanager
def using(engine: str | None) -> Iterator[None]:
    """Simulate with that engine; with none named, as it was."""
    token = _CHOSEN.set(engine or _CHOSEN.get())
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def run(
    network: RankClasses, tasks: Sequence[RankTask], durations: Sequence[Ticks], *, overlaps: bool
) -> list[tuple[Ticks, Ticks]]:
    """When each op of each task starts and ends, given isolated durations, in ticks.

    With `overlaps` a rank may have several collectives in flight at once. A PlanCannotRunError says
    that a time is too long for 63 bits.
    """
    try:
        if engine_name() == COMPILED:
            return compiled.run(network, tasks, durations, overlaps=overlaps)
        each = [own.tolist() for own in durations]
        times = Engine(network, overlaps=overlaps).run(tasks, each)
        return [(np.array(a, dtype=np.int64), np.array(b, dtype=np.int64)) for a, b in times]
    except OverflowError as error:
        raise PlanCannotRunError(TOO_LONG) from error
