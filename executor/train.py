"""Training: the program played step after step on one rank of a job that is already connected."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from executor.buffer_table import BufferTable
from executor.data.batches import feed
from executor.groups import ProcessGroups
from executor.launching.device_use import AUTO
from executor.launching.procfs import waited_s
from executor.launching.slow_ranks import SlowRanks
from executor.launching.task_specs import AdamW
from executor.memory.allocations import allocations
from executor.memory.routed_rows import peak_of_rows, rows_over_mean
from executor.nccl.issue_order import issue_order
from executor.play import play
from executor.prepared import PreparedProgram, prepare
from executor.rank_context import RankContext, StepNumbers, scratch_of
from executor.timing import NoRecorder, Recorder, recorder_for
from executor.training.chosen_experts import Counts, counter
from executor.training.graphs import GraphedSteps, StepGraph
from executor.weights import initial_values, load
from topologies.records import record
from workload.lowering.four_bits import check_four_bits
from workload.op import WEIGHT_CAST
from workload.pipeline.schedule import ways
from workload.program import Program
from workload.stages import turned_parts
from workload.timeline import Timeline

WARM_UP_STEPS = 2


@record
class TrainingStep:
    """What one step gave: its loss (before the update) and the seconds it took on this rank, from
    its batch in the host's memory to its loss there; `waited_s` of them the thread that computes
    stood ready while other threads held the cores. `grad_norm` is the global norm of all gradients
    before they are clipped, `lr` the learning rate of the update, `peak_bytes` what the run has."""

    number: int
    loss: float
    seconds: float
    waited_s: float = 0.0
    grad_norm: float = math.nan
    lr: float = math.nan
    peak_bytes: int = 0


@dataclass(slots=True)
class TrainingRun:
    """What a run gave on one rank. `timeline` is the recorded step's, empty if it never came to it;
    `carried` the last step's.

    `peak_bytes` is the most that torch's allocator held in the first step, `routed_bytes` what the
    program says of that step for the rows that came, if a number of rows depends on data;
    `rows_over_mean` of the last step how many those were. `chosen` is how often this rank's tokens
    chose each expert of a layer, of those ranks that were asked to count.
    """

    steps: list[TrainingStep] = field(default_factory=list)
    peak_bytes: int = 0
    routed_bytes: int | None = None
    rows_over_mean: dict[str, float] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=lambda: Timeline("measured", ()))
    carried: dict[str, int] = field(default_factory=dict)
    chosen: Counts = field(default_factory=dict)

    @property
    def step_s(self) -> float:
        """Median step time after the warm-up."""
        return statistics.median(step.seconds for step in self._counted)

    @property
    def waited_share(self) -> float:
        """The share of the counted steps' time in which this rank waited for a core."""
        return sum(s.waited_s for s in self._counted) / sum(s.seconds for s in self._counted)

    @property
    def spread_s(self) -> tuple[float, float]:
        """Between which times eight of ten steps after the warm-up lie: their 10th and 90th
        percentile, interpolated between the steps."""
        counted = [step.seconds for step in self._counted]
        if len(counted) < 2:
            return counted[0], counted[0]
        low, *_, high = statistics.quantiles(counted, n=10, method="inclusive")
        return low, high

    @property
    def _counted(self) -> list[TrainingStep]:
        """The steps after the warm-up; of few steps, the last."""
        return self.steps[WARM_UP_STEPS:] or self.steps[1:] or self.steps


class Trainer:
    """One rank's buffers, groups and place for one program; `seed` is what dropout draws from, and
    `lr_of` gives each step's learning rate, by default always that of `adamw`. With a `graph` steps
    are captured and replayed by it, and none is recorded."""

    def __init__(
        self,
        program: Program,
        groups: ProcessGroups,
        *,
        rank: int,
        device: torch.device,
        adamw: AdamW,
        seed: int = 0,
        lr_of: Callable[[int], float] | None = None,
        attention: str = AUTO,
        graph: StepGraph | None = None,
    ) -> None:
        check_four_bits(program)
        self.program = program
        self._graphed = None if graph is None else GraphedSteps(graph)
        self._numbers = StepNumbers.on(device)
        self._lr_of = lr_of or (lambda step: adamw.lr)
        self.grad_norm = torch.full((1,), math.nan, dtype=torch.float64, device=device)
        self.place = RankContext(
            grid=program.plan.grid,
            rank=rank,
            device=device,
            adamw=adamw,
            seed=seed,
            scratch=scratch_of(program.peak.total_bytes, device),
            grad_norm=self.grad_norm,
            numbers=self._numbers,
            attention=attention,
            ways=ways(program.plan.pipeline.schedule),
            turned=turned_parts(program.gpt, program.plan, program.stage),
        )
        groups.prepare(program)
        self._numbers.fill(self.place.step, adamw.lr)
        self.order = issue_order(program, late=device.type == "cuda")
        groups.check(program, self.order)
        with allocations(device) as built:
            self.table = BufferTable(program, device)
        self.prepared = prepare(program, self.table, groups, self.place, self.order)
        self._held_bytes = built.held_bytes

    def count_choices(self) -> None:
        """From now on count how often tokens choose each expert (`TrainingRun.chosen`)."""
        own = counter(self.program.gpt, self.program.plan, self.place.rank)
        self.place = replace(self.place, chosen=own)

    def start_from(self, values: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Set every parameter from its whole tensor."""
        load(self.table, self.program, self.place.rank, values)
        self.cast_weights()

    def start_afresh(self, seed: int) -> None:
        """Set every parameter to its initial value."""
        self.start_from(initial_values(self.program, seed))

    def cast_weights(self) -> None:
        """Make anew what a recipe's linears multiply for the weights, all ranks together."""
        behind = (
            replace(each, waits=(), begins=(), frees=())
            for each in self.prepared.ops
            if self.program.ops[each.index].purpose == WEIGHT_CAST
        )
        play(PreparedProgram(tuple(behind), ()), self.table, self.place, NoRecorder())

    def run(
        self,
        batches: Iterable[torch.Tensor],
        report: Callable[[TrainingStep], None] = lambda _: None,
        *,
        recorded: int = 0,
        last_step: Callable[[int, float], int | None] | None = None,
        done: int = 0,
        slow: SlowRanks | None = None,
    ) -> TrainingRun:
        """Play one step per batch of (sequences, sequence + 1) tokens, after those that are `done`.

        The step of the number `recorded` is recorded op by op, of a list of batches the last one.
        A step whose loss is not finite is the last, and so is that which `last_step` names, which
        is asked after each with its number and seconds, and which is then the recorded one. `slow`
        gets some steps more to compare.
        """
        result = TrainingRun()
        if not recorded and isinstance(batches, Sequence):
            recorded = done + len(batches)
        for number, batch in enumerate(batches, start=done + 1):
            place = self._at(number)
            records = number == recorded or (slow is not None and slow.wants(number))
            records = records and self._graphed is None
            recorder = recorder_for(self.program, place) if records else NoRecorder()
            step = self._step(batch, place, recorder, result)
            if records:
                timeline = recorder.timeline(self.program, self.place.rank)
                result.timeline = timeline if number == recorded else result.timeline
                if slow is not None:
                    slow.look(number, timeline)
            report(step)
            last = None if last_step is None else last_step(number, step.seconds)
            recorded = recorded if last is None else min(recorded, last)
            if not math.isfinite(step.loss) or (last is not None and number >= last):
                break
        result.rows_over_mean = rows_over_mean(self.program, self.table)
        result.chosen = {} if self.place.chosen is None else self.place.chosen.counts()
        return result

    def _at(self, step: int) -> RankContext:
        adamw = replace(self.place.adamw, lr=self._lr_of(step))
        self._numbers.fill(step, adamw.lr)
        return replace(self.place, step=step, adamw=adamw)

    def _step(
        self, batch: torch.Tensor, place: RankContext, recorder: Recorder, result: TrainingRun
    ) -> TrainingStep:
        """Play a step, which becomes the last of the result's; the first is measured."""
        started, waited = time.perf_counter(), waited_s()
        feed(batch, self.program, self.table, self.place)
        if result.steps:
            result.carried = self._play(place, recorder)
        else:
            result.carried, result.peak_bytes = self._measured(place, recorder)
            result.routed_bytes = peak_of_rows(self.program, self.table)
        loss = float(self.table["loss"])
        took = time.perf_counter() - started
        about = float(self.grad_norm), place.adamw.lr, result.peak_bytes
        step = TrainingStep(place.step, loss, took, waited_s() - waited, *about)
        result.steps.append(step)
        return step

    def _play(self, place: RankContext, recorder: Recorder) -> dict[str, int]:
        if self._graphed is None:
            return play(self.prepared, self.table, place, recorder)
        return self._graphed.perform(lambda: play(self.prepared, self.table, place, recorder))

    def _measured(self, place: RankContext, recorder: Recorder) -> tuple[dict[str, int], int]:
        """Play a step; returns what it carried, and the most that was allocated on the device.

        Freed memory is given back in it, so that what is held is what is needed.
        """
        self.table.give_back()
        keeps, self.table.keeps_freed = self.table.keeps_freed, False
        with allocations(place.device) as found:
            carried = self._play(place, recorder)
        self.table.keeps_freed = keeps
        if place.device.type == "cuda":
            return carried, found.peak_bytes
        return carried, self._held_bytes - self.table.host_bytes + found.peak_bytes
