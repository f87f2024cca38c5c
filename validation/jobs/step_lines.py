"""The steps of one format in a log: what each says, and how long it took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from topologies.records import record
from validation.jobs.log_formats import (
    BATCH,
    CLOCK,
    CONSUMED,
    DEVICE_TOKENS_PER_S,
    FLOPS,
    MEMORY,
    RUNTIME,
    SAMPLES,
    SAMPLES_PER_S,
    SECONDS,
    SEQUENCE,
    STEPS_PER_S,
    TOTAL,
    Format,
)
from validation.jobs.measured_job import LoggedSteps, numbered

LONGEST_S = 1e9  # of a step; longer times are errors
TIMES = (SECONDS, CLOCK, STEPS_PER_S, SAMPLES_PER_S, DEVICE_TOKENS_PER_S)  # the first counts
OF_ALL = (BATCH, SEQUENCE, *MEMORY)
LEAST_S = 60.0  # of a clock that shows whole seconds: a shorter time is off by more than 2 %
FEW = 3  # intervals of a clock, of which there should be more


@record
class Job:
    """What a step of the job works on, as far as known: sequences, tokens per sequence, devices,
    and the planned number of steps."""

    batch: float | None = None
    sequence: float | None = None
    devices: float | None = None
    steps: float | None = None

    @property
    def device_tokens(self) -> float | None:
        """Tokens of a step per device; None if one of the sizes is unknown."""
        if not (self.batch and self.sequence and self.devices):
            return None
        return self.batch * self.sequence / self.devices


@record
class Logged:
    """One line of a step: its number, the quantity from which its time follows, that quantity in SI
    units, the FLOP/s per device, and the end of a progress bar."""

    number: int
    quantity: str
    value: float
    flops_per_s: float | None
    total: float | None


@dataclass
class StepLines:
    """The steps of one format, of the first rank that has logged one.

    `broken` counts lines that begin a step and do not say how long it took; `begins` are the lines
    before which another job began, whose sizes differ from those of the job before it.
    """

    format: Format
    lines: list[Logged] = field(default_factory=list)
    kept: dict[str, list[float]] = field(default_factory=dict)
    ranks: dict[str, None] = field(default_factory=dict)
    broken: int = 0
    begins: list[int] = field(default_factory=list)
    _begun: dict[str, tuple[int, dict[str, float]]] = field(default_factory=dict)
    _consumed: tuple[int, float] | None = None

    def take(self, line: str, rank: str) -> bool:
        """Take in a line; return whether it has, or completes, a step."""
        if not self.format.several_lines:
            if not self.format.begins(line):
                return False
            number, values = self.format.number(line), self.format.values.found(line)
            return self._step(rank, number, values)
        if not self.format.begins(line):
            if rank in self._begun:
                self._begun[rank][1].update(self.format.values.found(line))
            return False
        done = self._complete(rank)
        if (number := self.format.number(line)) is not None:
            self._begun[rank] = number, self.format.values.found(line)
        return done

    def end(self) -> bool:
        """Take in the end of the log; return whether that completes a step."""
        done = [self._complete(rank) for rank in list(self._begun)]
        return True in done

    def another_job(self) -> None:
        """Begin a new job, with other sizes, at the next step."""
        if self.lines and (not self.begins or self.begins[-1] != len(self.lines)):
            self.begins.append(len(self.lines))

    def _complete(self, rank: str) -> bool:
        if rank not in self._begun:
            return False
        number, values = self._begun.pop(rank)
        return bool(values) and self._step(rank, number, values)

    def _step(self, rank: str, number: int | None, values: dict[str, float]) -> bool:
        told = (each for each in (RUNTIME, *TIMES) if values.get(each))
        quantity = CLOCK if CLOCK in values else next(told, None)  # a clock may show nothing yet
        if number is None or quantity is None:
            self.broken += not self.format.several_lines
            return False
        self.ranks[rank] = None
        if rank != next(iter(self.ranks)):
            return True
        if self.lines and not self.format.clock and number == self.lines[-1].number:
            return True  # a progress bar that is drawn again
        value = values[quantity]
        if quantity == RUNTIME:
            number = round(value * values.get(STEPS_PER_S, 0.0))
        found = Logged(number, quantity, value, values.get(FLOPS), values.get(TOTAL))
        self.lines.append(found)
        self._keep(number, values)
        return True

    def _keep(self, number: int, values: Mapping[str, float]) -> None:
        """Keep the values of the whole job: batch, sequence, memory."""
        consumed, before = values.get(CONSUMED, 0.0), self._consumed
        if BATCH not in values and before is not None and number > before[0] and before[1] > 0:
            values = {**values, BATCH: (consumed - before[1]) / (number - before[0])}
        for key in OF_ALL:
            if (value := values.get(key, 0.0)) > 0:
                known = self.kept.setdefault(key, [])
                if key not in (BATCH, SEQUENCE):
                    self.kept[key] = [max([value, *known])]
                elif not known or known[-1] != value:
                    known.append(value)
        self._consumed = number, consumed

    def entries(self, job: Job) -> tuple[tuple[LoggedSteps, ...], tuple[int, ...]]:
        """The steps of the last job in the log, numbered from 1, and the steps at which it started.
        Empty if step times depend on an unknown size of the job."""
        lines = self.lines[self.begins[-1] :] if self.last_has_steps else self.lines
        if self.format.clock:
            return self._by_clock(lines, job)
        if self.format.whole:
            steps = int(job.steps or (lines[-1].number if lines else 0))
            runs = [LoggedSteps(1, steps, lines[-1].value / steps)] if lines and steps else []
            return tuple(runs), (1,)
        from_zero = any(each.number == 0 for each in lines)
        timed = (
            (each.number + from_zero, _step_s(each.quantity, each.value, job), each.flops_per_s)
            for each in lines
        )
        known = [(at, s, flops) for at, s, flops in timed if s is not None and 0 < s < LONGEST_S]
        entries, starts = numbered(known)
        if self.format.alone:
            entries = tuple(replace(each, first=each.last) for each in entries)
        return entries, starts

    @property
    def last_has_steps(self) -> bool:
        """Whether the last of several jobs in the log has logged a step."""
        return bool(self.begins) and self.begins[-1] < len(self.lines)

    def _by_clock(
        self, lines: Sequence[Logged], job: Job
    ) -> tuple[tuple[LoggedSteps, ...], tuple[int, ...]]:
        """The steps between readings of a clock. Of several progress bars the longest counts, since
        evaluation has separate bars."""
        longest = max(lines, key=lambda each: each.value, default=None)
        shown = [
            (each.number, each.value)
            for each in lines
            if longest is not None and each.total == longest.total
        ]
        if self.format.counts != SAMPLES:
            return by_clock(shown)
        found = tuple(_intervals(shown, job.batch, 0.0)) if job.batch else ()
        return found, _starts(found)


def by_clock(
    shown: Sequence[tuple[int, float]],
) -> tuple[tuple[LoggedSteps, ...], tuple[int, ...]]:
    """The steps between readings (step number, seconds) of a clock in whole seconds, and the steps
    at which the job started."""
    found = tuple(_intervals(shown, 1.0, LEAST_S))
    if len(found) < FEW:
        found = tuple(_intervals(shown, 1.0, 0.0))
    return found, _starts(found)


def _starts(found: Sequence[LoggedSteps]) -> tuple[int, ...]:
    ends = [0, *(each.last for each in found)]
    again = (each.first for each, end in zip(found, ends, strict=False) if each.first <= end)
    return tuple([each.first for each in found[:1]] + list(again))


def _step_s(quantity: str, value: float, job: Job) -> float | None:
    """Seconds of a step, from what a line says of it.

    >>> _step_s(DEVICE_TOKENS_PER_S, 4096.0, Job(batch=8, sequence=1024, devices=2))
    1.0
    """
    if quantity == SECONDS:
        return value
    if quantity == STEPS_PER_S:
        return 1 / value
    if quantity == SAMPLES_PER_S:
        return job.batch / value if job.batch else None
    return job.device_tokens / value if job.device_tokens else None


def _intervals(
    shown: Sequence[tuple[int, float]], per_step: float, least_s: float
) -> Iterator[LoggedSteps]:
    """The steps between readings of a clock at least `least_s` apart, with their mean seconds. A
    new interval begins if the step number does not grow or the clock goes back."""
    begin: tuple[int, float] | None = None
    before: tuple[int, float] | None = None
    for number, clock_s in shown:
        if begin is None or before is None or number <= before[0] or clock_s < before[1]:
            begin = number, clock_s
        elif clock_s - begin[1] >= max(least_s, 1e-3) and number - begin[0] >= per_step:
            first, last = round(begin[0] / per_step) + 1, round(number / per_step)
            yield LoggedSteps(first, last, (clock_s - begin[1]) / (number - begin[0]) * per_step)
            begin = number, clock_s
        before = number, clock_s
