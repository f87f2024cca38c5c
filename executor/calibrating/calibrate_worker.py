"""Calibration: every op kind and every collective timed on the device at hand, by playing it.

What is played are programs of one op, repeated: the same kernels in the same loop as a training
step, so a table includes what the loop costs. Nothing of a whole step is measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.distributed as dist

from executor.buffer_table import BufferTable
from executor.calibrating.message_benchmarks import messages
from executor.calibrating.microbenchmarks import Sample, collectives, kernels, overlapped
from executor.calibrating.sample_values import fill
from executor.groups import ProcessGroups
from executor.job import connected
from executor.launching.devices import processor_name
from executor.launching.launch_env import RankInfo
from executor.launching.task_specs import AdamW, Calibrated, Calibration, Report, Tables
from executor.memory.device_memory import host_bytes
from executor.play import play
from executor.prepared import PreparedProgram, prepare
from executor.rank_context import RankContext, scratch_of
from executor.timing import NoRecorder, recorder_for, timing_event
from workload.grid import Grid
from workload.program import Program

REPEATS = 3
MOST_REPEATED = 100
MEETINGS = 30  # of each collective and size in one playing
RARE = 10  # of so many the shortest and the longest count for nothing
OVERLAP_TURNS = 10
ISSUED = 10  # repeats whose issue is timed
AHEAD_CYCLES = 200_000  # of a GPU's clock for each op: 100 us, in which a host issues it
MOST_SHARE = 0.99  # of compute's time lost beside a collective: with all of it lost none would run


def measure(task: Calibration, info: RankInfo, report: Report) -> dict[str, Any]:
    """Time everything on all ranks at once: the fields of `Calibrated`, for rank 0 to say."""
    with connected(info, task.threads, task.timeout_s, task.device) as device:
        place = RankContext(grid=Grid(dp=info.ranks), rank=info.rank, device=device, adamw=AdamW())
        groups = ProcessGroups(info.rank, task.timeout_s)
        tables: dict[str, Tables] = {"kernels": {}, "collectives": {}}
        issued: dict[str, list[float]] = {}
        spreads: list[float] = []
        samples = list(_samples(task, info))
        sample_s = task.sample_s / 2 if task.quick else task.sample_s
        for done, (table, key, features, sample) in enumerate(samples, start=1):
            row = {**features, "seconds": seconds_of(sample, place, groups, sample_s, spreads)}
            tables[table].setdefault(key, []).append(row)
            if table == "kernels" and device.type == "cuda":
                issued.setdefault(key, []).append(issue_s(sample, place, groups))
            report({"done": done, "of": len(samples), "measuring": key})
        found = Calibrated(
            kernels=tables["kernels"],
            collectives=tables["collectives"],
            overlap=_compute_share(task, place, groups),
            device=device_name(device),
            memory_bytes=memory_bytes(device, info.local_ranks),
            torch=str(torch.__version__),
            reserve_bytes=reserve_bytes(device),
            host={key: statistics.median(seconds) for key, seconds in issued.items()},
            spread=statistics.median(spreads),
        )
        return asdict(found)


def _compute_share(task: Calibration, place: RankContext, groups: ProcessGroups) -> float:
    """The share of an overlapped collective's time by which the compute beside it takes longer.

    From n matmuls of c seconds, n collectives of d, and both at once in t: (t - max(c, d)) / min,
    held between 0 and `MOST_SHARE`.
    """
    ranks = place.grid.ranks
    if ranks == 1:
        return 0.0
    compute, network, both = (
        _mean(_play(sample, OVERLAP_TURNS, place, groups, REPEATS))
        for sample in overlapped(ranks, task.precisions[0])
    )
    longer, shorter = max(compute, network), min(compute, network)
    return min(max((both - longer) / shorter, 0.0), MOST_SHARE)


def _samples(
    task: Calibration, info: RankInfo
) -> Iterator[tuple[str, str, dict[str, float], Sample]]:
    ranks = info.ranks
    for precision in task.precisions:
        for sample in kernels(precision, quick=task.quick):
            features = {"ranks": float(ranks), **sample.features}
            yield "kernels", f"{sample.key}@{precision}", features, sample
    for sample in collectives(ranks, quick=task.quick):
        yield "collectives", sample.key, sample.features, sample
    for sample in messages(info.rank, ranks, quick=task.quick):
        yield "collectives", sample.key, sample.features, sample


def seconds_of(
    sample: Sample,
    place: RankContext,
    groups: ProcessGroups,
    sample_s: float,
    spreads: list[float] | None = None,
) -> float:
    """Median over a few playings of the seconds that one repeat takes, the mean of all ranks.

    On a GPU they are the device's, which never waits for its host. `spreads` gets by how much, as
    a share of it, the slowest of this rank's playings is above the fastest.
    """
    place = _sliced(sample, place)
    if sample.meets:
        return _mean(_meetings(sample, MEETINGS, place, groups))
    once = max(_mean(_play(sample, 2, place, groups, 1)), 1e-7)
    count = min(max(int(sample_s / once), 2), MOST_REPEATED)
    timings = _timings(sample, count, place, groups, REPEATS)
    if spreads is not None:
        spreads.append(max(timings) / min(timings) - 1)
    return _mean(statistics.median(timings))


def issue_s(sample: Sample, place: RankContext, groups: ProcessGroups) -> float:
    """Seconds in which the host issues one repeat to a GPU, the mean of all ranks.

    Of few repeats: where many launches wait, the next one waits too.
    """
    place = _sliced(sample, place)
    program, table = _prepared(sample, ISSUED, place, groups)[1:]
    timings = []
    for _ in range(REPEATS):
        dist.barrier()
        torch.cuda.synchronize()
        started = time.perf_counter()
        play(program, table, place, NoRecorder())
        timings.append((time.perf_counter() - started) / ISSUED)
        torch.cuda.synchronize()
    return _mean(statistics.median(timings))


def _sliced(sample: Sample, place: RankContext) -> RankContext:
    """The place with the kernels' slices of the step that the sample's op comes from, and on the
    ranks over which that step splits sequences or experts."""
    if not sample.peak_bytes:
        return place
    sliced = replace(place, scratch=scratch_of(sample.peak_bytes, place.device))
    if sample.grid is None:
        return sliced
    return replace(sliced, grid=sample.grid, rank=place.rank % sample.grid.ranks)


def _meetings(sample: Sample, count: int, place: RankContext, groups: ProcessGroups) -> float:
    """Seconds from this rank's coming to a collective to its end: the mean of the middle ones, for
    in a step the waits add up, but the machine's rare hiccups are no part of it."""
    program, ready, table = _prepared(sample, count, place, groups)
    spans: list[float] = []
    for _ in range(REPEATS):
        dist.barrier()
        recorder = recorder_for(program, place)
        play(ready, table, place, recorder)
        timeline = recorder.timeline(program, place.rank)
        spans += [s.end_s - s.start_s for s in timeline.spans if s.op.is_collective]
    spans.sort()
    cut = len(spans) // RARE
    return statistics.fmean(spans[cut : len(spans) - cut])


def _play(
    sample: Sample, count: int, place: RankContext, groups: ProcessGroups, repeats: int
) -> float:
    return statistics.median(_timings(sample, count, place, groups, repeats))


def _timings(
    sample: Sample, count: int, place: RankContext, groups: ProcessGroups, repeats: int
) -> list[float]:
    """Seconds of one repeat on this rank, of each playing."""
    place = replace(place, grid=sample.program(1).plan.grid) if sample.key == "send_recv" else place
    program, table = _prepared(sample, count, place, groups)[1:]
    timings = []
    for _ in range(repeats):
        dist.barrier()
        with _timed(place.device, count) as seconds:
            play(program, table, place, NoRecorder())
        timings.append(seconds[0] / count)
    return timings


@contextmanager
def _timed(device: torch.device, count: int) -> Iterator[list[float]]:
    """The seconds that `count` ops take, by the device's own clock.

    A GPU sleeps first, so long that the host has issued all of them before it comes to them: it is
    the time of kernels in a step whose host runs ahead. Not modelled: a host that takes longer than
    `AHEAD_CYCLES` for an op; the GPU's waits for it are then in the time.
    """
    seconds: list[float] = []
    if device.type != "cuda":
        started_s = time.perf_counter()
        yield seconds
        seconds.append(time.perf_counter() - started_s)
        return
    started, ended = timing_event(), timing_event()
    torch.cuda.synchronize(device)
    torch.cuda._sleep(AHEAD_CYCLES * count)  # type: ignore[no-untyped-call]
    started.record()
    yield seconds
    ended.record()
    ended.synchronize()
    seconds.append(started.elapsed_time(ended) / 1e3)


def _prepared(
    sample: Sample, count: int, place: RankContext, groups: ProcessGroups
) -> tuple[Program, PreparedProgram, BufferTable]:
    program = sample.program(count)
    groups.prepare(program)
    table = BufferTable(program, place.device)
    fill(program, table)
    return program, prepare(program, table, groups, place), table


def _mean(value: float) -> float:
    """The mean over all ranks, so that they agree on what they do next."""
    device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
    total = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def device_name(device: torch.device) -> str:
    """What the device calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor_name()


def memory_bytes(device: torch.device, ranks: int) -> int:
    """What one rank's device holds: a GPU's whole memory, or a share of the host's for each of
    the `ranks` on it."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return host_bytes() // ranks


def reserve_bytes(device: torch.device) -> int:
    """What of a GPU's memory is neither free nor torch's, once all groups communicate: the context,
    kernels, the communicators' buffers, and what other processes hold there."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free - torch.cuda.memory_reserved(device))
