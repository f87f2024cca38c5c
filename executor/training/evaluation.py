"""Evaluation: the loss of held-out batches by forward passes alone, on the weights of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import torch

from executor.buffer_table import BufferTable
from executor.data.batches import feed
from executor.data.dataset import Dataset
from executor.groups import ProcessGroups
from executor.launching.task_specs import Job, Report
from executor.nccl.issue_order import issue_order
from executor.play import play
from executor.prepared import prepare
from executor.timing import NoRecorder
from executor.train import Trainer
from workload.lowering import lower_forward
from workload.passes.matmul_forms import Matmul


class Evaluator:
    """The forward program of a trainer's plan, on the trainer's own parameters.

    All ranks make and ask it together. Its tensors live as long as an evaluation, in which less is
    alive at a time than in a training step.
    """

    def __init__(
        self, trainer: Trainer, groups: ProcessGroups, forms: Mapping[Matmul, str]
    ) -> None:
        of, at = trainer.program, replace(trainer.place, chosen=None)
        self._program = lower_forward(of.gpt, of.plan, of.stage, forms=forms)
        self._at = at
        groups.prepare(self._program)
        order = issue_order(self._program, late=at.device.type == "cuda")
        groups.check(self._program, order)
        self._table = BufferTable(self._program, at.device, lent=trainer.table)
        self._prepared = prepare(self._program, self._table, groups, at, order)

    def loss(self, batches: Iterable[torch.Tensor]) -> float:
        """The mean loss of batches of (sequences, sequence + 1) tokens, each as large as the
        plan's."""
        losses = []
        for batch in batches:
            feed(batch, self._program, self._table, self._at)
            play(self._prepared, self._table, self._at, NoRecorder())
            losses.append(float(self._table["loss"]))
        self._table.give_back()
        return sum(losses) / len(losses)


def evaluated_after(
    job: Job, data: Dataset | None, trainer: Trainer, groups: ProcessGroups, report: Report
) -> Callable[[int], dict[str, float]]:
    """What a run says of its evaluation after a step: `eval_loss`, or nothing where none is due.

    `report` hears of each batch, so that no rank seems silent meanwhile.
    """
    held_out = job.held_out
    if held_out is None or data is None:
        return lambda step: {}
    evaluator = Evaluator(trainer, groups, dict(job.forms))
    size = job.plan.batch

    def batches() -> Iterator[torch.Tensor]:
        for number in range(held_out.batches):
            report({"evaluated": number})
            yield torch.from_numpy(data.first_windows(job.gpt, number * size, size))

    def after(step: int) -> dict[str, float]:
        due = held_out.is_due(step, job.steps)
        return {"eval_loss": evaluator.loss(batches())} if due else {}

    return after
