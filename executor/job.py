"""A job on one rank: find the other ranks, train, and report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from executor.batches import batch_of
from executor.errors import LaunchError
from executor.groups import Groups
from executor.memory import check_memory
from executor.seat import Seat
from executor.tasks import Job, Report
from executor.text import check_text, read_text
from executor.train import Run, Step, Trainer
from workload.errors import PlanCannotRunError
from workload.lowering import lower


def perform(job: Job, seat: Seat, report: Report) -> dict[str, Any]:
    """Connect to the other ranks, train, and return what rank 0 has to say.

    `report` gets a dict per step on rank 0. The result holds losses, step times, the largest
    peak of all ranks and every rank's spans of the last step.
    """
    text = read_text(job.text)
    check_text(text, job.gpt)
    with connected(seat, job.threads, job.timeout_s) as device:
        stage = job.plan.grid.coordinates(seat.rank)["pipe"]
        program = lower(job.gpt, job.plan, stage, forms=dict(job.forms))
        if device.type == "cpu":
            check_memory(program, seat.local_ranks)
        groups = Groups(seat.rank, job.timeout_s)
        adamw, seed = job.adamw, job.seed
        trainer = Trainer(program, groups, rank=seat.rank, device=device, adamw=adamw, seed=seed)
        trainer.start_afresh(job.seed)
        batches = (
            batch_of(text, job.gpt, job.plan.batch, step, job.seed) for step in range(job.steps)
        )

        def each(step: Step) -> None:
            if seat.rank == 0:
                report({"step": step.number, "loss": step.loss, "seconds": step.seconds})

        return _gather(trainer.run(batches, each), seat)


@contextmanager
def connected(seat: Seat, threads: int, timeout_s: float) -> Iterator[torch.device]:
    """Join the job's process group for as long as the with statement lasts; gives the device."""
    torch.set_num_threads(threads)
    device = _device(seat)
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=seat.meeting,
            rank=seat.rank,
            world_size=seat.ranks,
            timeout=timedelta(seconds=timeout_s),
            device_id=device if device.type == "cuda" else None,  # communicators are formed at once
        )
    except (dist.DistError, RuntimeError, ValueError) as error:
        raise LaunchError(f"rank {seat.rank} cannot join the others: {_sentence(error)}") from None
    try:
        yield device
    except torch.OutOfMemoryError as error:
        raise PlanCannotRunError(f"rank {seat.rank} does not fit: {_sentence(error)}") from None
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise LaunchError(f"rank {seat.rank} lost the others: {_sentence(error)}") from None
        raise
    finally:
        dist.destroy_process_group()


def _sentence(error: Exception) -> str:
    """The first line of torch's message, without the place in its sources."""
    return re.sub(r"^\[[^\]]*\]\s*", "", str(error).splitlines()[0])


def _device(seat: Seat) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # With one visible device per task (srun --gpus-per-task=1) every rank sees it as number 0.
    device = torch.device("cuda", seat.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _gather(run: Run, seat: Seat) -> dict[str, Any]:
    mine = {
        "rank": seat.rank,
        "peak_bytes": run.peak_bytes,
        "carried": run.carried,
        "start_s": [span.start_s for span in run.timeline.spans],
        "end_s": [span.end_s for span in run.timeline.spans],
    }
    everyone: list[Any] = [None] * seat.ranks
    dist.all_gather_object(everyone, mine)
    return {
        "step_s": run.step_s,
        "steps_s": [step.seconds for step in run.steps],
        "losses": [step.loss for step in run.steps],
        "peak_bytes": max(entry["peak_bytes"] for entry in everyone),
        "ranks": everyone,
    }
