"""Why a measured step differs from its prediction: the likeliest causes, in sentences.

The rules, in order; each names a part only if it is off by `NOTABLE` of the predicted step:
  - what differs in the question (batch, ranks, plan) explains everything else, and is said alone;
  - compute that is off is named with the class of kernels that is off most;
  - exposed communication is put down to less overlap if communication as a whole takes the time
    that was predicted (within `ALIKE`), else to slower collectives, the one that is off most by
    name;
  - an idle device waits for its host, or for data;
  - steps scatter if the 90th percentile is `SCATTER` times the 10th;
  - memory that is off by `MEMORY` of its prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from validation.jobs.anatomy import CLASSES, COMPUTE, EXPOSED, IDLE, Anatomy
from validation.jobs.compared import Compared

NOTABLE = 0.05  # of the predicted step
ALIKE = 0.15
SCATTER = 1.2
AS_PREDICTED = "the median step lies in the predicted range, and nothing stands out"
MEMORY = 0.1
ALLOCATED = "allocated"
Rows = Sequence[tuple[str, float, float]]  # name, measured and predicted seconds


def causes(found: Compared) -> tuple[str, ...]:
    """The sentences; one that says so where nothing is off."""
    if found.differences:
        return tuple(f"{each}: these are two different steps" for each in found.differences)
    said = [*_of_parts(found), *_of_steps(found), *_of_memory(found)]
    if not said:
        said.append(AS_PREDICTED if found.is_within else _unexplained(found))
    return tuple(said)


def _unexplained(found: Compared) -> str:
    way = "slower" if found.error < 0 else "faster"
    if found.job.anatomy is None:
        return (
            f"the step is {way} than its 80 % range, and this log does not show why: compare a "
            "trace of torch.profiler"
        )
    return f"the step is {way} than its range, and no part of it is off by much"


def _of_parts(found: Compared) -> Iterator[str]:
    measured, predicted = found.job.anatomy, found.anatomy
    if measured is None or predicted is None:
        return
    off = {name: (real - told) / predicted.step_s for name, real, told in found.parts()}
    classes, communicators = found.kernels()[: len(CLASSES)], found.kernels()[len(CLASSES) :]
    compute, exposed = off[COMPUTE], off[EXPOSED]
    if abs(compute) >= NOTABLE:
        alone = ", communication as predicted" if abs(exposed) < NOTABLE else ""
        yield _of_compute(measured.compute_s / predicted.compute_s - 1, classes, alone)
    if exposed >= NOTABLE:
        times = _times(measured.exposed_s, predicted.exposed_s)
        why = _of_exposed(measured, predicted, communicators)
        yield f"exposed communication is {times} the prediction: {why}"
    elif exposed <= -NOTABLE:
        yield "less communication is exposed than predicted: faster collectives, or more overlap"
    if off[IDLE] >= NOTABLE:
        share = _percent(measured.idle_s / measured.step_s)
        yield (
            f"the device is idle for {share} of the step: its host issues kernels too slowly, or "
            "waits for data"
        )


def _of_compute(off: float, classes: Rows, alone: str) -> str:
    way = f"is {_percent(off)} {'slower' if off > 0 else 'faster'} than predicted"
    if off > 1:
        way = f"takes {1 + off:.1f} times the prediction"
    why = "kernels or clocks" if off > 0 else "the machine's file makes kernels too slow"
    worst = _worst(classes, 1 if off > 0 else -1)
    return f"compute {way}{alone}, most of it {worst}: {why}"


def _of_exposed(measured: Anatomy, predicted: Anatomy, communicators: Rows) -> str:
    is_longer = measured.communication_s > (1 + ALIKE) * predicted.communication_s
    if predicted.overlapped_s and not is_longer:
        return "all communication takes the time that was predicted, so overlap is off?"
    worst = _worst(communicators, 1)
    return f"slower collectives, or waiting for other ranks in them, most of it {worst}"


def _worst(rows: Rows, sign: int) -> str:
    """The row that is off most, in the direction of the sign."""
    name, real, told = max(rows, key=lambda row: sign * (row[1] - row[2]))
    return f"{name} ({_times(real, told)} the prediction)" if told else f"{name} (not predicted)"


def _times(real: float, told: float) -> str:
    return f"{real / told:.1f} times" if told > 0 else "beyond"


def _percent(share: float) -> str:
    return f"{abs(100 * share):.0f} %"


def _of_steps(found: Compared) -> Iterator[str]:
    scatter = found.steps.p90_s / found.steps.p10_s
    if scatter >= SCATTER:
        yield (
            f"step times vary: p90 is {scatter:.1f} times p10; network or file system are shared, "
            "or a device is slow at times"
        )


def _of_memory(found: Compared) -> Iterator[str]:
    real, told = found.job.peak_bytes, found.prediction.memory.peak_bytes
    if real is None or abs(real / told - 1) < MEMORY:
        return
    if found.job.peak_of != ALLOCATED and real > told:
        return  # an allocator reserves more than is in use, and a device holds still more
    way = "more" if real > told else "less"
    yield (
        f"peak memory is {_percent(real / told - 1)} {way} than predicted: other recomputation or "
        "sharding than the plan says?"
    )
