"""What is asked for each run whose memory was measured, and its answer in bytes."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from simulator.predict import predict
from simulator.stacks.job import Job
from simulator.step_memory import Memory
from topologies.errors import SimgptError
from topologies.files.reading import TABLE_BYTES, UserFile, shipped_toml
from topologies.files.units import quantity
from topologies.machine import Machine
from topologies.placement import scheduler
from validation.memory.caching_allocator import allocator_after
from validation.memory.golden_runs import GoldenRun, golden_runs, is_golden
from validation.published.case import case_of
from validation.published.run_machine import machine_of
from validation.published.runs import PublishedRun, read_runs
from workload.lowering import lower
from workload.plan import Plan

GOLDEN = "Megatron-LM, tests of its CI"
GOLDEN_EXPERTS = "Megatron-LM, tests of its CI with experts"
ALLOCATED, RESERVED, DEVICE = "allocated", "reserved", "device"  # in data/memory_measures.toml
_FILE = UserFile("table of memory", SimgptError, TABLE_BYTES)


@dataclass(frozen=True)
class Asked:
    """A job on a machine, and the stage whose peak was measured: the fullest where it is None."""

    job: Job
    machine: Machine
    stage: int | None

    @property
    def signature(self) -> str:
        """Equal for questions that are predicted alike."""
        gpt = replace(self.job.gpt, name="", source="")
        return repr((gpt, self.job.plan, self.job.stack, self.machine.entries, self.stage))


@dataclass(frozen=True)
class MeasuredRun:
    """A run with its measured bytes, and how to get what is asked for it.

    `measure` says what was measured (`data/memory_measures.toml`), `more_bytes` what its
    environment adds to the workspaces of libraries.
    """

    id: str
    source: str
    measure: str
    measured_bytes: int
    ask: Callable[[], Asked]
    more_bytes: int = 0


@dataclass(frozen=True)
class Answer:
    """A question's answer: tensors and libraries' workspaces at the peak, what the caching
    allocator reserves for each byte that it gives out, less one, and what the device holds besides
    (driver and communicators)."""

    peak_bytes: int
    unused: float
    outside_bytes: int

    def of(self, measure: str, more_bytes: int = 0) -> int:
        """The bytes that a measure shows."""
        allocated = self.peak_bytes + more_bytes
        if measure == ALLOCATED:
            return allocated
        reserved = int(allocated * (1 + self.unused))
        return reserved if measure == RESERVED else reserved + self.outside_bytes


def questions(path: Path | None) -> Iterator[MeasuredRun]:
    """The measured runs of a file; without one, of both that come with simgpt."""
    golden = path is None or _is_golden(path)
    if golden:
        for run in golden_runs(path):
            of_run = partial(_asked_of_golden, run)
            measured = run.measured_bytes
            source = GOLDEN_EXPERTS if run.has_experts else GOLDEN
            yield MeasuredRun(run.id, source, ALLOCATED, measured, of_run, run.library_bytes)
    if path is None or not golden:
        for published in read_runs(path):
            peak = published.real("peak_mem_GiB")
            if peak:
                measure = measure_of(published)
                measured = int(peak * quantity(measure.get("unit", "1 GiB"), "bytes"))
                ask = partial(_asked_of_published, published)
                name, source = published.id, published.source
                yield MeasuredRun(name, source, measure["kind"], measured, ask)


def _is_golden(path: Path) -> bool:
    return is_golden(next(iter(csv.reader(_FILE.lines(path))), []))


def measure_of(run: PublishedRun) -> dict[str, Any]:
    """What a row's column of memory measures: an entry of data/memory_measures.toml."""
    text = f"{run.source} {run.text('framework')} {run.text('notes')}"
    return next(each for each in _measures() if each["has"] in text)


@cache
def _measures() -> list[dict[str, Any]]:
    return list(shipped_toml("validation", "data/memory_measures.toml")["measure"])


def _asked_of_golden(run: GoldenRun) -> Asked:
    job = run.job
    return Asked(job, run.machine, job.plan.pipe - 1)


def _asked_of_published(run: PublishedRun) -> Asked:
    return Asked(case_of(run).job, machine_of(run), measure_of(run).get("stage"))


def answer(asked: Asked) -> Answer:
    """Predict the peak of what is asked, and play the allocator's part."""
    job, machine = asked.job, asked.machine
    placed = scheduler(machine, job.plan.grid.ranks)
    memory = predict(job.gpt, job.plan, machine, placement=placed, stack=job.stack).memory
    stage = _fullest(memory) if asked.stage is None else asked.stage
    habits = job.stack.kernels(job.gpt, job.plan, machine).habits
    program = lower(job.gpt, _few_micro_batches(job.plan), stage, habits=habits)
    allocator = allocator_after(program)
    return Answer(
        memory.stage_peak_bytes[stage] + memory.library_bytes,
        allocator.most_reserved / allocator.most_allocated - 1,
        int(machine.device.reserve_bytes),
    )


def _fullest(memory: Memory) -> int:
    return max(range(len(memory.stage_peak_bytes)), key=lambda at: memory.stage_peak_bytes[at])


def _few_micro_batches(plan: Plan) -> Plan:
    """The plan with no more micro-batches than twice its stages: later ones find the blocks of
    earlier ones."""
    each = plan.batch // plan.micro_batches
    return replace(plan, batch=each * min(plan.micro_batches, 2 * plan.pipe))
