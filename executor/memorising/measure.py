"""A rank of a run that measures memorisation: it trains, and generates its share of documents."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist

from executor.data.corpus import check_text, read_text
from executor.errors import DivergedError
from executor.groups import ProcessGroups
from executor.job import connected
from executor.launching.launch_env import RankInfo
from executor.launching.task_specs import AdamW, Report
from executor.memorising.documents import Buckets, buckets_of, stream
from executor.memorising.generate import greedy, leading
from executor.memorising.spec import LAST, REPETITIONS, Memorisation
from executor.train import Trainer, TrainingRun, TrainingStep
from executor.training.learning_rate import Schedule
from executor.weights import join
from workload.lowering import lower

WARM_UP = Schedule(warmup_steps=20)  # without it a wider model starts worse than a narrow one


def measure(task: Memorisation, info: RankInfo, report: Report) -> dict[str, Any]:
    """Train, then generate the last tokens of every document from those before them.

    Rank 0 returns, for each count of repetitions, how many tokens of each document were right
    before the first that was not, the mean loss of the last pass and the seconds of both parts.
    """
    text = read_text(task.text)
    check_text(text, task.gpt)
    buckets = buckets_of(text, task.gpt.sequence + 1, task.documents, task.seed)
    with connected(info, task.threads, task.timeout_s, task.device) as device:
        trainer = _trainer(task, info, device)
        started = time.perf_counter()
        run = _train(trainer, task, buckets, report)
        trained = time.perf_counter()
        mine = _generate(task, trained_weights(trainer), buckets, info)
        generated = time.perf_counter()
        everyone: list[Any] = [None] * info.ranks if info.rank == 0 else []
        dist.gather_object(mine, everyone if info.rank == 0 else None)
    if info.rank:
        return {}
    last = run.steps[-(task.steps // task.passes) :]
    return {
        "matched": {str(count): _woven([of[count] for of in everyone]) for count in REPETITIONS},
        "loss": statistics.fmean(step.loss for step in last),
        "train_s": trained - started,
        "generate_s": generated - trained,
    }


def _trainer(task: Memorisation, info: RankInfo, device: torch.device) -> Trainer:
    program = lower(task.gpt, task.plan)
    trainer = Trainer(
        program,
        ProcessGroups(info.rank, task.timeout_s),
        rank=info.rank,
        device=device,
        adamw=AdamW(lr=task.lr),
        seed=task.seed,
        lr_of=lambda step: WARM_UP.rate(step, lr=task.lr, steps=task.steps),
    )
    trainer.start_afresh(task.seed)
    return trainer


def _train(trainer: Trainer, task: Memorisation, buckets: Buckets, report: Report) -> TrainingRun:
    def each(step: TrainingStep) -> None:
        report({"step": step.number, "loss": step.loss, "seconds": step.seconds})

    batches = stream(buckets, task.passes, task.batch, task.seed)
    run = trainer.run(batches, each)
    last = run.steps[-1]
    if not math.isfinite(last.loss):
        raise DivergedError(
            f"the loss of step {last.number} of {task.steps} is not a finite number, so training "
            f"{task.gpt.name} stopped there; try a smaller --lr than {task.lr:g}"
        )
    return run


def trained_weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """The whole parameters, of which every rank of a plan of data alone has a copy."""
    program, rank = trainer.program, trainer.place.rank
    return {
        name: join({rank: trainer.table[name].cpu()}, layout, program.plan.grid)
        for name, layout in program.layouts.items()
    }


def _generate(
    task: Memorisation, weights: dict[str, torch.Tensor], buckets: Buckets, info: RankInfo
) -> dict[int, list[int]]:
    """This rank's documents of each bucket: every so many-th as there are ranks."""
    found: dict[int, list[int]] = {}
    for count, tokens in buckets.items():
        own = tokens[info.rank :: info.ranks]
        prefixes, expected = own[:, : task.prefix], own[:, task.prefix :]
        found[count] = leading(greedy(weights, task.gpt, prefixes, LAST), expected)
    return found


def _woven(parts: list[list[int]]) -> list[int]:
    """The ranks' shares in the documents' own order again."""
    whole = [0] * sum(map(len, parts))
    for rank, part in enumerate(parts):
        whole[rank :: len(parts)] = part
    return whole
