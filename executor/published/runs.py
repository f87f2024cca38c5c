"""What a run starts from and what it leaves: published weights, where its job asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from executor.launching.task_specs import Job, Report
from executor.train import Trainer


def start(trainer: Trainer, job: Job, report: Report) -> None:
    """Set every parameter: to a checkpoint's, or to its initial value."""
    if job.from_weights is None:
        trainer.start_afresh(job.seed)
        return
    from executor.published.reading import published_values

    trainer.start_from(_said(published_values(trainer.program, Path(job.from_weights)), report))


def finish(trainer: Trainer, job: Job, report: Report) -> None:
    """Write the checkpoint that the job asks for, if it does."""
    if job.export_weights is None:
        return
    from executor.published.config import config_beside
    from executor.published.writing import export

    start = None if job.from_weights is None else Path(job.from_weights)
    folder = start if start is None or start.is_dir() else start.parent
    source = None if folder is None else config_beside(folder)
    export(trainer, Path(job.export_weights), source, lambda: report({"weights": "written"}))


def _said(
    values: Iterable[tuple[str, torch.Tensor]], report: Report
) -> Iterator[tuple[str, torch.Tensor]]:
    """The values, of each of which it is said that the rank gets on."""
    for name, whole in values:
        report({"weights": "read"})
        yield name, whole
