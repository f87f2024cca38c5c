"""A job on one rank: find the other ranks, train, and report."""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from executor.checkpoints.run_saver import NoSaver, RunSaver, saver_of
from executor.data.batches import batch_of
from executor.data.sources import Data, check_data, read_data
from executor.errors import LaunchError, PeersLostError
from executor.groups import ProcessGroups
from executor.launching.device_use import NUMA, attention_of, check_graphs
from executor.launching.launch_env import ENVIRONMENT, RankInfo
from executor.launching.numa import bind_beside
from executor.launching.sentences import first_sentence
from executor.launching.slow_ranks import SlowRanks
from executor.launching.stopping import ENDS, StopRequest, stopped_by
from executor.launching.task_specs import Job, Report
from executor.memory.device_memory import check_device_memory, check_memory
from executor.memory.routed_rows import most_over_mean
from executor.published.runs import finish, start
from executor.train import Trainer, TrainingRun, TrainingStep
from executor.training.chosen_experts import summed
from executor.training.evaluation import evaluated_after
from executor.training.graphs import CudaGraph
from workload.errors import PlanCannotRunError
from workload.lowering import lower
from workload.program import Program

# How torch and its libraries say that the other end of a connection is gone.
_LOST = re.compile(r"gloo|connection|timed? ?out|ncclRemoteError|ncclSystemError|abort", re.I)


STOP = "simgpt/last_step"  # of the ranks' store: the step that a run which was asked to end ends at


def perform(
    job: Job,
    info: RankInfo,
    report: Report,
    *,
    ends_on: Sequence[signal.Signals] = ENDS,
) -> dict[str, Any]:
    """Connect to the other ranks, train, and return what rank 0 has to say; other ranks nothing.

    `report` gets a dict per step. The result holds losses, step times, the largest peak of all
    ranks and every rank's spans of the last step. Training stops at a loss that is not finite,
    whose step is then `diverged_at_step`: all ranks see the same loss. While it trains, a signal
    of `ends_on` ends it a few steps later, at the same one on all ranks: `stopped_at_step`, and
    `stopped_by` names the signal.
    """
    data = read_data(job.text, job.tokenizer)
    check_data(data, job.gpt)
    held_out = job.held_out.read(job.gpt, job.plan) if job.held_out is not None else None
    cores = _bound(job, info)
    with connected(info, job.threads, job.timeout_s, job.device) as device:
        stage = job.plan.grid.coordinates(info.rank)["pp"]
        program = lower(job.gpt, job.plan, stage, forms=dict(job.forms))
        _check_memory(program, info, device)
        groups = ProcessGroups(info.rank, job.timeout_s, info.local_ranks)
        trainer = _trainer(job, program, groups, info, device)
        if job.counts_experts:
            trainer.count_choices()
        saver = saver_of(job, trainer, info, report)
        if not saver.done:
            start(trainer, job, report)
        evaluated = evaluated_after(job, held_out, trainer, groups, report)
        after = _after(evaluated, saver, report)
        run, stop = _train(job, data, trainer, saver.done, after, report, ends_on)
        kept = saver.finish(run.steps[-1])
        if math.isfinite(run.steps[-1].loss):
            finish(trainer, job, report)
        result = _gather(run, info, job.steps, cores)
        by = signal.Signals(stop.number).name if stop.number else None
        about = {"device": device.type, "attention_backend": trainer.place.attention}
        return {**result, **kept, "stopped_by": by, **about} if result else {}


def _bound(job: Job, info: RankInfo) -> list[int]:
    """The cores that this rank keeps to, if it was asked to; before anything starts threads."""
    if job.device_use.bind != NUMA:
        return []
    device = _device(info, job.device)
    if device.type == "cpu":
        raise LaunchError("--bind numa binds ranks to their GPUs' sockets, and this run has no GPU")
    return bind_beside(torch.cuda.get_device_properties(device))


def _trainer(
    job: Job, program: Program, groups: ProcessGroups, info: RankInfo, device: torch.device
) -> Trainer:
    """What trains on this rank, without weights so far."""
    use, graph = job.device_use, None
    if use.cuda_graphs:
        check_graphs(job.gpt, job.plan, device.type, traced=False, steps=job.steps)
        graph = CudaGraph()
    return Trainer(
        program,
        groups,
        rank=info.rank,
        device=device,
        adamw=job.adamw,
        seed=job.seed,
        lr_of=job.lr,
        attention=attention_of(use, job.gpt, job.plan, device.type),
        graph=graph,
    )


def _after(
    evaluated: Callable[[int], dict[str, float]], saver: RunSaver | NoSaver, report: Report
) -> Callable[[TrainingStep], None]:
    """What a rank does after a step: it evaluates and saves where that is due, and says so."""

    def after(step: TrainingStep) -> None:
        found = evaluated(step.number) if math.isfinite(step.loss) else {}
        report(said_of(step) | found)
        saver.after(step)

    return after


def said_of(step: TrainingStep) -> dict[str, Any]:
    """What a rank reports of a step."""
    return {
        "step": step.number,
        "loss": step.loss,
        "seconds": step.seconds,
        "grad_norm": step.grad_norm,
        "lr": step.lr,
        "peak_bytes": step.peak_bytes,
    }


def _train(
    job: Job,
    data: Data,
    trainer: Trainer,
    done: int,
    after: Callable[[TrainingStep], None],
    report: Report,
    ends_on: Sequence[signal.Signals],
) -> tuple[TrainingRun, StopRequest]:
    """Train the steps that are left, until the last one or a signal."""
    left = range(done, job.steps)
    batches = (batch_of(data, job.gpt, job.plan.batch, step, job.seed) for step in left)
    slow = SlowRanks(trainer.place, done, lambda note: report({"note": note}))
    with stopped_by(ends_on, _agreed) as stop:
        run = trainer.run(
            batches,
            after,
            recorded=job.steps,
            last_step=stop.last_step,
            done=done,
            slow=slow,
        )
    return run, stop


def _check_memory(program: Program, info: RankInfo, device: torch.device) -> None:
    if device.type == "cpu":
        check_memory(program, info.local_ranks)
    else:
        check_device_memory(program, info.rank, torch.cuda.mem_get_info(device)[0])


@contextmanager
def connected(
    info: RankInfo, threads: int, timeout_s: float, wanted: str = "auto"
) -> Iterator[torch.device]:
    """Join the job's process group for as long as the with statement lasts; gives the device.

    After an error the process should leave at once: groups are not taken down then, for that may
    wait for ranks that are gone or stand in a collective.
    """
    torch.set_num_threads(threads)
    device = _device(info, wanted)
    try:
        _join(info, device, timeout_s)
    except (dist.DistError, RuntimeError, ValueError) as error:
        message = f"rank {info.rank} cannot join the others: {first_sentence(str(error))}"
        raise PeersLostError(message) from None
    try:
        yield device
    except torch.OutOfMemoryError as error:
        message = f"rank {info.rank} does not fit: {first_sentence(str(error))}"
        raise PlanCannotRunError(message) from None
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        reason = first_sentence(str(error))
        if _LOST.search(str(error)):
            raise PeersLostError(f"rank {info.rank} lost the others: {reason}") from None
        raise LaunchError(f"rank {info.rank} cannot communicate: {reason}") from None
    dist.destroy_process_group()


def _join(info: RankInfo, device: torch.device, timeout_s: float) -> None:
    file = info.store_file
    store = _store_of_attempt(info) if file is None else FileStore(file, info.ranks)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=info.init_method if store is None else None,
        store=store,
        rank=info.rank,
        world_size=info.ranks,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,  # communicators are formed at once
    )


def _store_of_attempt(info: RankInfo) -> Any:
    """Where ranks meet that torchrun starts, apart from those of an earlier attempt: its store may
    outlive a restart, with the addresses of ranks that are gone. None where torch makes one."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or info.init_method != ENVIRONMENT:
        return None
    shared, _, _ = next(rendezvous(ENVIRONMENT, info.rank, info.ranks))
    return PrefixStore(f"attempt-{attempt}", shared)


def _device(info: RankInfo, wanted: str) -> torch.device:
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    device = torch.device("cuda", info.gpu(torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device


def _agreed(step: int) -> int:
    """The step that the first rank to ask named as the last: this one's, if that was it."""
    store = dist.distributed_c10d._get_default_store()
    return int(store.compare_set(STOP, "", str(step)))


def _gather(run: TrainingRun, info: RankInfo, steps: int, cores: list[int]) -> dict[str, Any]:
    mine = {
        "rank": info.rank,
        "cores": cores,
        "peak_bytes": run.peak_bytes,
        "routed_bytes": run.routed_bytes,
        "rows_over_mean": run.rows_over_mean,
        "chosen": run.chosen,
        "waited_share": run.waited_share,
        "carried": run.carried,
        "ops": [span.op.name for span in run.timeline.spans],
        "start_s": [span.start_s for span in run.timeline.spans],
        "end_s": [span.end_s for span in run.timeline.spans],
    }
    everyone: list[Any] = [None] * info.ranks if info.rank == 0 else []
    dist.gather_object(mine, everyone if info.rank == 0 else None)
    if info.rank:
        return {}
    last = run.steps[-1]
    is_finite = math.isfinite(last.loss)
    low_s, high_s = run.spread_s
    return {
        "step_s": run.step_s,
        "step_p10_s": low_s,
        "step_p90_s": high_s,
        "steps_s": [step.seconds for step in run.steps],
        "losses": [step.loss for step in run.steps],
        "diverged_at_step": None if is_finite else last.number,
        "stopped_at_step": last.number if is_finite and last.number < steps else None,
        "peak_bytes": max(entry["peak_bytes"] for entry in everyone),
        "routed_peak_bytes": max(entry["routed_bytes"] or 0 for entry in everyone) or None,
        "rows_over_mean": most_over_mean(entry["rows_over_mean"] for entry in everyone),
        "chosen_experts": summed(entry["chosen"] for entry in everyone),
        "waited_share": max(entry["waited_share"] for entry in everyone),
        "ranks": everyone,
    }
