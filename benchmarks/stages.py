"""Where the time of a prediction goes: `python -m benchmarks.stages`.

Each of the questions a to f of benchmarks/questions.py is asked over and over, plainly (`new`) or
inside a session that has answered it (`again`), while a timer interrupts the process after equal
pieces of processor time. The innermost function on the stack that belongs to a stage says where the
piece goes, so that helpers (names of ops, sizes, models) and libraries count for whoever calls
them. The stages are folders and modules of simgpt's, listed in `STAGES`; a module that is in none
is its caller's. Times are milliseconds of one prediction.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType

import click

import simgpt
from benchmarks._command import Row, benchmark, cpu_s, packages
from benchmarks.questions import STEPS, TINY, Step, in_own_session

EVERY_S = 0.001  # of processor time, or a tick of the kernel's where that is longer
REST = "rest"
STAGES: Mapping[str, tuple[str, ...]] = {
    "API": (
        "simgpt",
        "workload/plan_text.py",
        "workload/descriptions",
        "workload/models",
        "simulator/uncertainty",
    ),
    "machine file": ("topologies",),
    "emission": ("workload/lowering",),
    "passes": (
        *("workload/passes", "workload/moving.py", "workload/lowering/held"),
        *("workload/lowering/recipes",),
    ),
    "waits, lives": ("workload/dataflow.py", "workload/structure.py", "workload/program.py"),
    "stream graph, windows": (
        *("simulator/engine/stream_graph.py", "simulator/engine/interference.py"),
        *("simulator/engine/columns.py",),
    ),
    "repetition": (
        *("simulator/engine/cut.py", "simulator/engine/whole_program.py"),
        "simulator/engine/steady_state.py",
    ),
    "network": (
        *("simulator/ranks", "topologies/collectives", "topologies/network"),
        *("topologies/routing", "topologies/placement.py"),
    ),
    "durations": ("simulator/costs", "simulator/engine/simulate.py"),
    "engine": ("simulator/engine/compiled.py", "simulator/engine/engines.py"),
    "pipeline": ("simulator/pipeline", "workload/pipeline", "workload/stages.py"),
    "breakdown, memory": (
        *("simulator/attribution", "simulator/step_memory.py", "simulator/predict.py"),
        *("simulator/engine/whole_step.py",),
    ),
}

COLUMNS = ("question", "how", *STAGES, REST, "seconds")


class Sampler:
    """Counts the stages that are at work when the timer interrupts."""

    def __init__(self) -> None:
        self._root = f"{packages()}{os.sep}"
        self._places = [(place, name) for name, places in STAGES.items() for place in places]
        self._places.sort(key=lambda each: -len(each[0]))  # the most specific first
        self._known: dict[CodeType, str] = {}
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Sampler:
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        while frame is not None and not (stage := self.stage_of(frame.f_code)):
            frame = frame.f_back
        self.counts[REST if frame is None else stage] += 1

    def stage_of(self, code: CodeType) -> str:
        """The stage that a function belongs to; empty where it is none's."""
        if code not in self._known:
            path = code.co_filename.removeprefix(self._root)
            of_path = (name for place, name in self._places if _is_within(path, place))
            self._known[code] = next(of_path, "")
        return self._known[code]


def _is_within(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def stages_of(ask: Callable[[], object], seconds: float) -> Row:
    """Milliseconds of each stage of a call, asked again and again for so long; seconds of all."""
    calls, began = 0, cpu_s()
    with Sampler() as sampler:
        while not calls or cpu_s() - began < seconds:
            ask()
            calls += 1
    each_s = (cpu_s() - began) / calls
    samples = max(sampler.counts.total(), 1)
    parts = {name: 1e3 * each_s * sampler.counts[name] / samples for name in (*STAGES, REST)}
    return parts | {"seconds": each_s}


def rows_of(name: str, step: Step, seconds: float) -> Iterator[Row]:
    """A question's stages in a session of its own, and asked again."""
    step.ask()
    yield {"question": name, "how": "plain"} | stages_of(in_own_session(step.ask), seconds)
    with simgpt.Session():
        step.ask()
        yield {"question": name, "how": "again"} | stages_of(step.ask, seconds)


@benchmark(*COLUMNS)
@click.option("--only", multiple=True, help="Questions: a, b, ... (repeatable)")
@click.option("--row-seconds", default=10.0, show_default=True, help="Processor time of each row.")
def main(*, only: tuple[str, ...], row_seconds: float, smallest: bool) -> list[Row]:
    """Where the time of a prediction goes, in milliseconds of processor time."""
    os.environ["SIMGPT_CACHE"] = "off"
    if unknown := set(only).difference(STEPS):
        raise click.UsageError(f"--only {min(unknown)} is none of {', '.join(STEPS)}")
    steps = {name: step for name, step in STEPS.items() if not only or name in only}
    if smallest:
        steps, row_seconds = {"a": TINY}, 0.01
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of plans that do not fit
        return [row for name in steps for row in rows_of(name, steps[name], row_seconds)]


if __name__ == "__main__":
    main()
