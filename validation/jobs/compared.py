"""A measured job beside the prediction of its step: what differs, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from simulator.predict import Prediction
from topologies.records import record
from validation.jobs.anatomy import BESIDE, CLASSES, COMPUTE, EXPOSED, IDLE, Anatomy
from validation.jobs.logged_sizes import contradictions
from validation.jobs.measured_job import MeasuredJob, StepStatistics


@record(slots=False)
class Compared:
    """A job, its steps that count, and what was predicted; `anatomy` is that of the predicted step,
    where the job has one and the step is not too long to be simulated op by op. `batch` and `sizes`
    (by the names of `logged_sizes`) are those of the question, before sequences are split over
    devices."""

    job: MeasuredJob
    steps: StepStatistics
    prediction: Prediction
    anatomy: Anatomy | None
    batch: int
    remarks: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """Relative error of the predicted step: positive where it is too long."""
        return self.prediction.step_s / self.steps.median_s - 1

    @property
    def is_within(self) -> bool:
        """Whether the measured median lies in the predicted range of eight of ten steps."""
        within = self.prediction.range
        return within.low_s <= self.steps.median_s <= within.high_s

    @property
    def differences(self) -> tuple[str, ...]:
        """How the job's question differs from that of the prediction, as far as the log says."""
        return tuple(self._differences())

    def _differences(self) -> Iterator[str]:
        job, asked = self.job, self.prediction
        if job.batch is not None and job.batch != self.batch:
            yield f"the job's batch is {job.batch:,} sequences, the prediction's {self.batch:,}"
        if job.ranks is not None and job.ranks != asked.devices:
            yield f"the job had {job.ranks:,} ranks, the prediction has {asked.devices:,}"
        yield from contradictions(job.sizes, self.sizes)
        if job.plan and job.plan != str(asked.plan):
            yield f"the job's plan was {job.plan}, the prediction's is {asked.plan}"

    def timers(self) -> list[tuple[str, float, float | None]]:
        """The log's timers: their names, their measured seconds, and the predicted ones of those
        that mean the same as a part of the prediction."""
        told = self._timers_s()
        return [(name, real, told.get(name)) for name, real in self.job.timers_s.items()]

    def _timers_s(self) -> dict[str, float]:
        """Megatron-LM's timers of a step's two halves, of which `forward-backward` has all sums of
        gradients. Parameters are gathered within `optimizer`, unless they are beside the forward
        pass; then, or where none are, it is the update alone.

        *Source:* NVIDIA/Megatron-LM, megatron/training/training.py (train_step) and
        megatron/core/optimizer/distrib_optimizer.py (step_with_ready_grads).
        """
        plan, optimizer_s = self.prediction.plan, self.prediction.breakdown_s["optimizer"]
        if plan.zero and not {"dp", "oag"} & set(plan.training.overlap):
            return {}
        return {
            "forward-backward": self.prediction.step_s - optimizer_s,
            "optimizer": optimizer_s,
        }

    def parts(self) -> list[tuple[str, float, float]]:
        """Of a step with an anatomy, the name of each part of its time line, and its measured and
        predicted seconds."""
        measured, predicted = self.job.anatomy, self.anatomy
        if measured is None or predicted is None:
            return []
        return [
            (COMPUTE, measured.compute_s, predicted.compute_s),
            (EXPOSED, measured.exposed_s, predicted.exposed_s),
            (IDLE, measured.idle_s, predicted.idle_s),
            (BESIDE, measured.overlapped_s, predicted.overlapped_s),
        ]

    def kernels(self) -> list[tuple[str, float, float]]:
        """Of a step with an anatomy, the same for its classes of compute and its communicators;
        these by kind alone where the trace does not have the sizes of all groups."""
        measured, predicted = self.job.anatomy, self.anatomy
        if measured is None or predicted is None:
            return []
        rows = [(name, measured.classes_s[name], predicted.classes_s[name]) for name in CLASSES]
        both = measured.communicators_s, predicted.communicators_s
        if any(not each.ranks and each.kind in _sized(predicted) for each in both[0]):
            both = measured.by_kind(), predicted.by_kind()
        names = sorted({*both[0], *both[1]})
        return rows + [(str(n), both[0].get(n, 0.0), both[1].get(n, 0.0)) for n in names]


def _sized(predicted: Anatomy) -> set[str]:
    """The kinds of communication whose groups have sizes in the prediction."""
    return {each.kind for each in predicted.communicators_s if each.ranks}
