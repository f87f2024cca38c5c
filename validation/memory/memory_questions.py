"""What is asked for each run whose memory was measured, and its answer in bytes."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from simulator.explain.nearest_fit import memory_of_stack
from simulator.search.bounds.peak_memory import stage_bytes
from simulator.stacks.job import Job
from topologies.errors import SimgptError
from topologies.files.reading import TABLE_BYTES, UserFile, shipped_toml
from topologies.files.units import quantity
from topologies.machine import Machine
from topologies.records import record
from validation.memory.caching_allocator import allocator_after
from validation.memory.golden_runs import GoldenRun, golden_runs, is_golden
from validation.moe.rows import SHIPPED, moe_runs_of, read_moe_runs
from validation.published.case import case_as_read
from validation.published.run_machine import machine_of
from validation.published.runs import PublishedRun, lines_of, read_runs
from workload.lowering import lower
from workload.plan import Plan

GOLDEN = "Megatron-LM, tests of its CI"
GOLDEN_EXPERTS = "Megatron-LM, tests of its CI with experts"
ALLOCATED, RESERVED, DEVICE = "allocated", "reserved", "device"  # in data/memory_measures.toml
_FILE = UserFile("table of memory", SimgptError, TABLE_BYTES)


@record(slots=False)
class MeasuredStage:
    """A job on a machine, and the stage whose peak was measured: the fullest where it is None."""

    job: Job
    machine: Machine
    stage: int | None

    @property
    def signature(self) -> str:
        """Equal for questions that are predicted alike."""
        gpt = replace(self.job.gpt, name="", source="")
        return repr((gpt, self.job.plan, self.job.stack, self.machine.entries, self.stage))


@record(slots=False)
class MeasuredRun:
    """A run with its measured bytes, and how to get what is asked for it.

    `measure` says what was measured (`data/memory_measures.toml`), `more_bytes` what its
    environment adds to the workspaces of libraries.
    """

    id: str
    source: str
    measure: str
    measured_bytes: int
    ask: Callable[[], MeasuredStage]
    more_bytes: int = 0


@record(slots=False)
class Answer:
    """A question's answer: tensors and libraries' workspaces at the peak, what the caching
    allocator reserves for each byte that it gives out, less one, and what the device holds besides
    (driver and communicators); `library_bytes` of the peak are the workspaces."""

    peak_bytes: int
    unused: float
    outside_bytes: int
    library_bytes: int = 0

    def of(self, measure: str, more_bytes: int = 0) -> int:
        """The bytes that a measure shows."""
        allocated = self.peak_bytes + more_bytes
        if measure == ALLOCATED:
            return allocated
        reserved = int(allocated * (1 + self.unused))
        return reserved if measure == RESERVED else reserved + self.outside_bytes

    def need(self, measure: str, measured_bytes: int, more_bytes: int = 0) -> float:
        """The logarithm of what the run needed of the memory for tensors (`Room`) over the peak of
        tensors that is predicted. Of what was allocated the allocator reserves more by its own
        rules; of what was reserved, or held by the device, it might have done with less."""
        reserved = float(measured_bytes)
        if measure == ALLOCATED:
            reserved *= 1 + self.unused
        elif measure == DEVICE:
            reserved -= self.outside_bytes
        least = 1.0  # byte: what is left of a small run whose surroundings are larger than assumed
        needed = max(reserved - self.library_bytes - more_bytes, least)
        return math.log(needed / (self.peak_bytes - self.library_bytes))


def questions(path: Path | None) -> Iterator[MeasuredRun]:
    """The measured runs of a file; without one, of those that come with simgpt."""
    golden = path is None or is_golden(header_of(path))
    if golden:
        for run in golden_runs(path):
            of_run = partial(_asked_of_golden, run)
            measured = run.measured_bytes
            source = GOLDEN_EXPERTS if run.has_experts else GOLDEN
            yield MeasuredRun(run.id, source, ALLOCATED, measured, of_run, run.library_bytes)
    if path is None or not golden:
        for published in published_in(path):
            peak = published.real("peak_mem_GiB")
            if peak:
                measure = measure_of(published)
                measured = int(peak * quantity(measure.get("unit", "1 GiB"), "bytes"))
                ask = partial(_asked_of_published, published)
                name, source = published.id, published.source
                yield MeasuredRun(name, source, measure["kind"], measured, ask)


def header_of(path: Path) -> list[str]:
    """The columns of a user's file."""
    return next(csv.reader(_FILE.lines(path)), [])


def published_in(path: Path | None) -> list[PublishedRun]:
    """The published runs of a file with the columns of published_runs.csv or of moe_cp_runs.csv;
    without one, of both that come with simgpt."""
    if path is None:
        return [*read_runs(), *moe_runs_of(*lines_of(None, SHIPPED))]
    return read_moe_runs(path) if "moe_layers" in header_of(path) else read_runs(path)


def measure_of(run: PublishedRun) -> dict[str, Any]:
    """What a row's column of memory measures: an entry of data/memory_measures.toml."""
    text = f"{run.source} {run.text('framework')} {run.text('notes')}"
    return next(each for each in _measures() if each["has"] in text)


@cache
def _measures() -> list[dict[str, Any]]:
    return list(shipped_toml("validation", "data/memory_measures.toml")["measure"])


def _asked_of_golden(run: GoldenRun) -> MeasuredStage:
    job = run.job
    return MeasuredStage(job, run.machine, job.plan.pp - 1)


def _asked_of_published(run: PublishedRun) -> MeasuredStage:
    return MeasuredStage(case_as_read(run).job, machine_of(run), measure_of(run).get("stage"))


def answer(asked: MeasuredStage) -> Answer:
    """Predict the peak of what is asked, and play the allocator's part."""
    job, machine = asked.job, asked.machine
    stages = range(job.plan.pp) if asked.stage is None else (asked.stage,)
    behaviour = job.stack.kernels(job.gpt, job.plan, machine).behaviour
    own = memory_of_stack(job.stack, job.plan)
    own = replace(own, casts=behaviour.casts)  # which depend on the device
    peak_bytes, stage = max(
        (stage_bytes(job.gpt, job.plan, own, stage), -stage) for stage in stages
    )
    stage, library_bytes = -stage, job.stack.library_bytes(machine)
    program = lower(job.gpt, _few_micro_batches(job.plan), stage, behaviour=behaviour)
    allocator = allocator_after(program)
    return Answer(
        peak_bytes + library_bytes,
        allocator.most_reserved / allocator.most_allocated - 1,
        int(machine.device.reserve_bytes),
        library_bytes,
    )


def _few_micro_batches(plan: Plan) -> Plan:
    """The plan with no more micro-batches than twice its stages: later ones find the blocks of
    earlier ones."""
    each = plan.batch // plan.micro_batches
    return replace(plan, batch=each * min(plan.micro_batches, 2 * plan.pp))
