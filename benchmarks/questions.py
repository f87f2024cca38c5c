"""How long simgpt takes for what users ask: `python -m benchmarks.questions`.

Times are processor time of one core, children included, each the median of several repeats with the
least and the largest of them. `plain` is a call in a `simgpt.Session` of its own, which knows
nothing yet; `new` one in a session that has answered the same with recomputation, or without;
`again` the same call once more, `other price` one with another bandwidth of memory there, and
`other batch` one with twice the batch. A sweep is one such call, with `sweep=`.
`cold` is a command of its own, from the start of its process to its end. What predictions keep on
disk is off (`SIMGPT_CACHE`). A first call, not timed, loads modules and files.

`--only predict` or `--only predict/a` chooses; the subjects are predict (a to f), sweep (pipeline,
experts, fsdp, deepseek), why (a), search (gpt-640b, llama-3.1-70b, llama-3.1-8b) and start (help,
a, e). All of it takes minutes. Packages of another commit are timed by tools/bench_against.py.
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import click

import simgpt
from benchmarks._command import Row, benchmark, cpu_s, packages

COLUMNS = (
    *("subject", "how", "median_s", "least_s", "most_s", "repeats"),
    *("plans", "plans_per_s", "lacks"),
)
FABRIC = "64x8xH100,8xNDR"
FULL_RECOMPUTE = ",recompute=full"
OTHER_PRICE = {"device.memory_bandwidth": "2 TB/s"}
Options = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """A step to predict, as a user spells it, and the values that a sweep of it varies."""

    model: str
    machine: str
    plan: str
    devices: int
    batch: int
    stack: str | None = None
    sweep: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def plans(self) -> int:
        """How many plans are predicted."""
        return prod(map(len, self.sweep.values()))

    @property
    def other(self) -> Step:
        """The step with full recomputation added, or taken out where its plan has it."""
        plan = self.plan.removesuffix(FULL_RECOMPUTE)
        return replace(self, plan=plan + (FULL_RECOMPUTE if plan == self.plan else ""), sweep={})

    def ask(self, function: str = "predict", *, batches: int = 1, **further: Any) -> None:
        """Ask a function of simgpt, with so many times the batch and with further options."""
        options: Options = {"devices": self.devices, "batch": self.batch * batches, **further}
        options |= {"stack": self.stack} if self.stack else {}
        options |= {"sweep": self.sweep} if self.sweep else {}
        getattr(simgpt, function)(self.model, self.machine, self.plan, **options)

    def words(self) -> list[str]:
        """The command that asks it."""
        stack = ["--stack", self.stack] if self.stack else []
        where = ["-m", self.machine, "-n", str(self.devices), "--batch", str(self.batch)]
        return ["predict", self.model, *where, "--plan", self.plan, *stack]


@dataclass(frozen=True)
class Search:
    """A search, in one process."""

    model: str
    machine: str
    devices: int
    batch: int
    options: Options = field(default_factory=dict)

    def ask(self) -> None:
        """Search."""
        options = {"batch": self.batch, "workers": 1, **self.options}
        simgpt.search(self.model, self.machine, self.devices, **options)


@dataclass(frozen=True)
class Subjects:
    """All that is timed."""

    steps: dict[str, Step]
    sweeps: dict[str, Step]
    why: dict[str, Step]
    searches: dict[str, Search]
    starts: dict[str, list[str]]


@dataclass(frozen=True)
class Repeats:
    """How often each is timed, and the seconds after which no further repeat begins."""

    most: int
    seconds: float

    def of(self, once: Callable[[], list[float]]) -> list[list[float]]:
        """What `once` measures, side by side, of each repeat."""
        found: list[list[float]] = []
        began = cpu_s()
        while not found or (len(found) < self.most and cpu_s() - began < self.seconds):
            gc.collect()
            found.append(once())
        return [list(each) for each in zip(*found, strict=True)]


def h100(model: str, stack: str, plan: str, **sweep: list[Any]) -> Step:
    """A step of 1,024 sequences on 64 nodes of eight H100."""
    return Step(model, FABRIC, plan, 512, 1024, stack, sweep)


STEPS = {
    "a": h100("llama-3.1-70b", "nemo", "tp=4,pp=4,vpp=5,cp=2,dp=rest,mbs=1"),
    "b": h100("llama-3.1-70b", "megatron-core", "tp=8,pp=4,dp=rest,mbs=1"),
    "c": h100("llama-3.1-8b", "torchtitan", "dp=rest,zero=3,mbs=1"),
    "d": h100("mixtral-8x7b", "megatron-core", "pp=2,ep=8,dp=rest,mbs=1"),
    "e": Step("gpt-80b", "frontier", "x=4,y=2,z=16,dp=rest,recompute=full", 8192, 8192, "simgpt"),
    "f": h100("deepseek-v3", "megatron-core-deepep", "ep=64,dp=rest,mbs=1,recompute=full"),
}
FULL, SOME = ["none", "full"], ["none", "selective", "full"]
SWEEPS = {
    "pipeline": h100(
        "llama-3.1-70b",
        "megatron-core",
        "mbs=1,dp=rest",
        tp=[2, 4, 8],
        pp=[2, 4, 8],
        vpp=[1, 5],
        recompute=FULL,
    ),
    "experts": h100(
        "mixtral-8x7b",
        "megatron-core",
        "mbs=1,dp=rest,sp=true",
        tp=[1, 2, 4],
        pp=[1, 2, 4],
        ep=[1, 2, 8],
        recompute=FULL,
    ),
    "fsdp": h100(
        "llama-3.1-8b",
        "torchtitan",
        "mbs=1,dp=rest,zero=3",
        tp=[1, 2, 4, 8],
        cp=[1, 2, 4],
        recompute=SOME,
    ),
    "deepseek": h100(
        "deepseek-v3",
        "megatron-core-deepep",
        "mbs=1,dp=rest,sp=true",
        tp=[1, 2],
        ep=[8, 32, 64],
        recompute=FULL,
    ),
}
USUAL = Subjects(
    STEPS,
    SWEEPS,
    {"a": STEPS["a"]},
    {
        "gpt-640b": Search("gpt-640b", "frontier", 32768, 8192, {"stack": "simgpt"}),
        "llama-3.1-70b": Search("llama-3.1-70b", FABRIC, 512, 1024, {"stack": "simgpt"}),
        "llama-3.1-8b": Search(
            *("llama-3.1-8b", "8x8xH100,8xNDR", 64, 512),
            {"stack": "simgpt", "model_set": {"sequence": 8192}},
        ),
    },
    {"help": ["--help"], "a": STEPS["a"].words(), "e": STEPS["e"].words()},
)
TINY = Step("tiny-30k", "1x2xH100", "dp=rest,mbs=1", 2, 2, "megatron-core")
ALONE = Step("tiny-30k", "1x1xH100", "dp=1", 1, 1, "simgpt")
SMALLEST = Subjects(
    {"a": TINY},
    {"pipeline": replace(TINY, sweep={"recompute": ["none", "full"]})},
    {"a": ALONE},
    {
        "tiny": Search(
            *("tiny-30k", "1x1xH100", 1, 1),
            {"stack": "simgpt", "plan": "recompute=none,overlap=none"},
        )
    },
    {"help": ["--help"]},
)


def timed(ask: Callable[[], None]) -> float:
    """Processor time of a call."""
    began = cpu_s()
    ask()
    return cpu_s() - began


def in_own_session(ask: Callable[[], None]) -> Callable[[], None]:
    """The call in a session that knows nothing."""

    def asked() -> None:
        with simgpt.Session():
            ask()

    return asked


def predictions(step: Step, repeats: Repeats) -> Iterator[tuple[str, list[float]]]:
    """How long plain calls take, and those in a session that knows something."""
    replace(step, sweep={}).ask()

    def in_session() -> list[float]:
        with simgpt.Session():
            step.other.ask()
            calls: list[Options] = [{}, {}, {"set": OTHER_PRICE}, {"batches": 2}]
            return [timed(partial(step.ask, **options)) for options in calls]

    yield "plain", repeats.of(lambda: [timed(in_own_session(step.ask))])[0]
    hows = "new", "again", "other price", "other batch"
    yield from zip(hows, repeats.of(in_session), strict=True)


def whys(step: Step, repeats: Repeats) -> Iterator[tuple[str, list[float]]]:
    """How long `why` takes, a plain call."""
    ALONE.ask()
    yield "plain", repeats.of(lambda: [timed(in_own_session(partial(step.ask, "why")))])[0]


def searches(search: Search, repeats: Repeats) -> Iterator[tuple[str, list[float]]]:
    """How long a search takes, a plain call."""
    next(iter(SMALLEST.searches.values())).ask()
    yield "plain", repeats.of(lambda: [timed(in_own_session(search.ask))])[0]


def starts(words: Sequence[str], repeats: Repeats) -> Iterator[tuple[str, list[float]]]:
    """How long a command takes."""
    run_command(words)
    yield "cold", repeats.of(lambda: [timed(partial(run_command, words))])[0]


def run_command(words: Sequence[str]) -> None:
    """Run a command of the packages that are timed; a RuntimeError has what it said."""
    command = [sys.executable, "-m", "simgpt", *words]
    environment = {**os.environ, "PYTHONPATH": str(packages())}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ended.returncode:
        raise RuntimeError(ended.stderr.strip() or f"status {ended.returncode}")


Timed = Callable[[Repeats], Iterator[tuple[str, list[float]]]]


def subjects(asked: Subjects) -> dict[str, tuple[int, Timed]]:
    """What is timed by its name, and how many plans each has."""
    found: dict[str, tuple[int, Timed]] = {}
    for group, steps in (("predict", asked.steps), ("sweep", asked.sweeps)):
        for name, step in steps.items():
            found[f"{group}/{name}"] = step.plans, partial(predictions, step)
    for name, step in asked.why.items():
        found[f"why/{name}"] = 1, partial(whys, step)
    for name, search in asked.searches.items():
        found[f"search/{name}"] = 1, partial(searches, search)
    for name, words in asked.starts.items():
        found[f"start/{name}"] = 1, partial(starts, words)
    return found


def chosen(asked: Subjects, only: Sequence[str]) -> list[str]:
    """The subjects that words name, or all; a UsageError where a word names none."""
    names = list(subjects(asked))
    for word in only:
        if not any(word in (name, name.partition("/")[0]) for name in names):
            raise click.UsageError(f"--only {word} is none of {', '.join(names)}")
    return [name for name in names if not only or {name, name.partition("/")[0]}.intersection(only)]


def rows_of(subject: str, plans: int, times: Timed, repeats: Repeats) -> Iterator[Row]:
    """The rows of a subject; packages that cannot answer it have a row that says what they lack."""
    row: Row = dict.fromkeys(COLUMNS) | {"subject": subject}
    try:
        found = dict(times(repeats))
    except Exception as error:  # whatever another commit makes of a question it does not know
        yield row | {"lacks": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        return
    for how, seconds in found.items():
        median = statistics.median(seconds)
        yield row | {
            "how": how,
            "median_s": median,
            "least_s": min(seconds),
            "most_s": max(seconds),
            "repeats": len(seconds),
            "plans": plans,
            "plans_per_s": plans / median if plans > 1 else None,
        }


@benchmark(*COLUMNS)
@click.option("--only", multiple=True, help="Subjects: predict, sweep/fsdp, why, ... (repeatable)")
@click.option("--repeats", default=5, show_default=True, help="Of each, at most.")
@click.option(
    "--row-seconds",
    default=20.0,
    show_default=True,
    help="After so much processor time no further repeat of a subject begins.",
)
def main(*, only: tuple[str, ...], repeats: int, row_seconds: float, smallest: bool) -> list[Row]:
    """How long simgpt takes for what users ask: processor time of one core."""
    asked, often = SMALLEST if smallest else USUAL, Repeats(repeats, row_seconds)
    os.environ["SIMGPT_CACHE"] = "off"
    rows: list[Row] = []
    known = subjects(asked)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of plans that do not fit
        for name in chosen(asked, only):
            rows += rows_of(name, *known[name], often)
    return rows


if __name__ == "__main__":
    main()
