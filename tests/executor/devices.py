"""Training and collectives on whatever device a rank has: what the tests on GPUs run, and a test on
the CPU runs as well."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes

from executor.collectives import issue
from executor.groups import ProcessGroups
from executor.job import connected
from executor.launching.launch_env import RankInfo
from executor.play import play
from executor.timing import NoRecorder
from executor.train import Trainer
from executor.training.graphs import CudaGraph, StepGraph
from tests.executor.ranks import TIMEOUT_S
from tests.executor.rehearsal import BLOOM, DROPPING, LLAMA, SMALL
from tests.executor.test_parity import ADAMW, BATCH, batches, reference, start
from workload.gpt import GPT
from workload.lowering import lower
from workload.op import COMPUTE, STEP, Op
from workload.plan import Plan

Case = tuple[GPT, Plan]


def on_devices(count: int, function: Callable[..., Any], *args: Any) -> Any:
    """What `function(rank, device, *args)` returns on rank 0, run by so many ranks that a job
    connects: on GPUs over NCCL, on a CPU over gloo."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = (count, folder, function, args)
        start_processes(_rank, ranks, nprocs=count, start_method="forkserver")  # type: ignore[no-untyped-call]
        return torch.load(Path(folder) / "answer", weights_only=True)


def _rank(
    rank: int, count: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    info = RankInfo(rank, count, rank, count, f"file://{folder}/store")
    with connected(info, 1, TIMEOUT_S) as device:
        answer = function(rank, device, *args)
        if rank == 0:
            torch.save(answer, Path(folder) / "answer")


def plan_of(micro_batches: int = 2, **keys: Any) -> Plan:
    """A plan for the batches of the parity tests."""
    cells = keys.get("z", 1) * keys.get("dp", 1)
    keys = {"precision": "fp32", **keys}
    return Plan.of(batch=BATCH, mbs=BATCH // (cells * micro_batches), **keys)


def eight_plans() -> list[Case]:
    """What one rank can train, over the options that change its kernels."""
    return [
        (SMALL, plan_of()),
        (SMALL, plan_of(4, recompute="full", overlap=())),
        (LLAMA, plan_of(recompute="selective")),
        (LLAMA, plan_of(1, attention="unfused")),
        (BLOOM, plan_of()),
        (SMALL, plan_of(offload="optimizer")),
        (DROPPING, plan_of()),
        (replace(SMALL, tied=False), plan_of(recompute="full:1", zero=1)),
    ]


def two_ranks() -> list[Case]:
    """Plans of two ranks along every axis, pipelines first."""
    return [
        (SMALL, plan_of(4, pp=2)),
        (SMALL, plan_of(4, pp=2, schedule="zb-h1", overlap=())),
        (replace(SMALL, layers=4), plan_of(4, pp=2, vpp=2)),
        (LLAMA, plan_of(tp=2, sp=True)),
        (SMALL, plan_of(y=2)),
        (SMALL, plan_of(z=2)),
        (SMALL, plan_of(dp=2, zero=3)),
    ]


def losses(rank: int, device: torch.device, cases: list[Case]) -> list[list[float]]:
    """The losses of each plan's training, from the reference's weights on its batches."""
    return [_trained(rank, device, *case, batches(case[0])) for case in cases]


def repeated(rank: int, device: torch.device, cases: list[Case], steps: int) -> list[list[float]]:
    """The losses of so many steps on one and the same batch."""
    return [_trained(rank, device, *case, batches(case[0])[:1] * steps) for case in cases]


def _trained(
    rank: int, device: torch.device, gpt: GPT, plan: Plan, tokens: list[torch.Tensor]
) -> list[float]:
    trainer = trainer_of(rank, device, gpt, plan)
    run = trainer.run(tokens)
    assert len(run.timeline.spans) == len(trainer.program.ops)
    assert all(span.end_s >= span.start_s for span in run.timeline.spans)
    return [step.loss for step in run.steps]


def trainer_of(rank: int, device: torch.device, gpt: GPT, plan: Plan, **how: Any) -> Trainer:
    """A trainer that starts from the reference's weights."""
    program = lower(gpt, plan, plan.grid.coordinates(rank)["pp"])
    groups = ProcessGroups(rank, TIMEOUT_S)
    trainer = Trainer(program, groups, rank=rank, device=device, adamw=ADAMW, **how)
    whole = start(gpt)
    trainer.start_from((name, whole[name]) for name in program.layouts)
    return trainer


def captured(
    rank: int, device: torch.device, gpt: GPT, plan: Plan, steps: int
) -> list[list[float]]:
    """The losses of steps whose learning rate differs, issued op by op and replayed by a graph."""
    tokens = (batches(gpt) * steps)[:steps]
    graphs: list[StepGraph | None] = [None, CudaGraph()]
    return [
        [
            step.loss
            for step in trainer_of(rank, device, gpt, plan, graph=graph, lr_of=rising)
            .run(tokens)
            .steps
        ]
        for graph in graphs
    ]


def by_backends(
    rank: int, device: torch.device, gpt: GPT, plan: Plan, backends: list[str]
) -> list[list[float]]:
    """The losses of a plan's training with kernels of attention by these names."""
    trainers = (trainer_of(rank, device, gpt, plan, attention=backend) for backend in backends)
    return [[step.loss for step in each.run(batches(gpt)).steps] for each in trainers]


def rising(step: int) -> float:
    """A learning rate that no two steps share."""
    return 1e-3 * step


def loss_errors(found: list[list[float]], cases: list[Case]) -> dict[str, float]:
    """For each plan the largest relative error of a loss against the plain model's."""
    return {
        f"{number} {plan}": max(
            abs(one - other) / other for one, other in zip(own, reference(gpt)[0], strict=True)
        )
        for number, (own, (gpt, plan)) in enumerate(zip(found, cases, strict=True))
    }


def collectives_of_one(rank: int, device: torch.device) -> list[list[float]]:
    """What every collective of a group of one makes of one tensor and of two, on both streams."""
    group = torch.distributed.new_group([rank], use_local_synchronization=True)
    found = []
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        for stream in (COMPUTE, "dp"):
            for sizes in ((3,), (2, 4)):
                sources = [torch.arange(1.0, n + 1, device=device) for n in sizes]
                targets = [torch.zeros_like(source) for source in sources]
                targets = sources if kind == "all_reduce" else targets
                op = Op(kind, kind, ("a",), ("b",), STEP, stream, ("dp",), dtype="fp32")
                work = issue(op, list(zip(sources, targets, strict=True)), group, None)
                assert (work is None) == (stream == COMPUTE)
                if work is not None:
                    work.wait()
                found += [target.tolist() for target in targets]
    return found


EXPECTED_OF_ONE = [list(map(float, range(1, n + 1))) for n in (3, 2, 4)] * 6


def peaks(rank: int, device: torch.device, gpt: GPT, plan: Plan) -> list[int]:
    """Bytes that torch held at most in a step on a GPU, once warmed up, and the program's peak."""
    trainer = trainer_of(rank, device, gpt, plan)
    tokens = batches(gpt)
    trainer.run(tokens[:2])
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    trainer.run(tokens[:1])
    return [torch.cuda.max_memory_allocated(device), trainer.program.peak.total_bytes]


def waits(rank: int, device: torch.device, gpt: GPT, plan: Plan) -> list[float]:
    """The loss of a step in which torch raises where an op makes the host wait for a GPU."""
    trainer = trainer_of(rank, device, gpt, plan)
    trainer.run(batches(gpt)[:1])
    torch.cuda.set_sync_debug_mode("error")
    try:
        play(trainer.prepared, trainer.table, trainer.place, NoRecorder())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [float(trainer.table["loss"])]
