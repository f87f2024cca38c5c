"""Evaluation: forward passes alone give the plain model's loss under every plan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from executor.groups import ProcessGroups
from executor.launching.task_specs import AdamW
from executor.train import Trainer
from executor.training.evaluation import Evaluator
from executor.training.held_out import HeldOut
from tests.executor.ranks import TIMEOUT_S, on_ranks
from tests.executor.resumed import job_of, ran
from tests.executor.test_parity import ADAMW, BATCH, TINY, TOLERANCE, batches, start
from tests.reference import ReferenceGPT
from workload.gpt import GPT, find_model
from workload.lowering import lower, lower_forward
from workload.op import BACKWARD
from workload.plan import Plan

DROPPING = replace(TINY, dropout=0.5)


def plan_of(**fields: Any) -> Plan:
    return Plan.of(**{"batch": BATCH, "mbs": 4, "precision": "fp64", **fields})


@cache
def reference() -> float:
    """The plain model's mean loss over all batches, without dropout."""
    model = ReferenceGPT(start(TINY), heads=TINY.attention.heads)
    with torch.no_grad():
        losses = [float(model.loss(batch[:, :-1], batch[:, 1:])) for batch in batches(TINY)]
    return sum(losses) / len(losses)


def differences(rank: int, gpt: GPT, plans: list[Plan]) -> list[float]:
    """For each plan the relative error of an evaluation before any step; and that training, with
    an evaluation after each step, gives what it gives without."""
    groups, found = ProcessGroups(rank, TIMEOUT_S), []
    for plan in plans:
        program = lower(gpt, plan, plan.grid.coordinates(rank)["pp"])
        runs = []
        for evaluates in (True, False):
            device = torch.device("cpu")
            trainer = Trainer(program, groups, rank=rank, device=device, adamw=ADAMW)
            whole = start(gpt)
            trainer.start_from((name, whole[name]) for name in program.layouts)
            if not evaluates:
                runs.append([step.loss for step in trainer.run(batches(gpt)).steps])
                continue
            evaluator = Evaluator(trainer, groups, {})
            found.append(abs(evaluator.loss(batches(gpt)) / reference() - 1))
            after: list[float] = []
            run = trainer.run(batches(gpt), lambda _: after.append(evaluator.loss(batches(gpt))))  # noqa: B023
            assert after[-1] != after[0]
            runs.append([step.loss for step in run.steps])
        assert runs[0] == runs[1]
    return found


ON_TWO = [
    plan_of(tp=2, sp=True),
    plan_of(dp=2, zero=3),
    plan_of(pp=2, mbs=2),
    plan_of(pp=2, mbs=4, schedule="dualpipe"),
]


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ranks_evaluate_as_the_plain_model_does_and_training_goes_on_as_without() -> None:
    assert max(on_ranks(2, differences, DROPPING, ON_TWO[3:])) < TOLERANCE


@pytest.mark.distributed
@pytest.mark.slow
def test_two_ranks_do_so_under_more_plans() -> None:
    assert max(on_ranks(2, differences, DROPPING, ON_TWO)) < TOLERANCE


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_eight_ranks_evaluate_as_the_plain_model_does() -> None:
    four = {"stage_layers": (1, 0, 1, 0)}
    plans = [
        plan_of(tp=2, y=2, z=2, recompute="full"),
        plan_of(tp=2, dp=2, pp=2, zero=2, schedule="gpipe", mbs=2),
        plan_of(z=2, dp=4, zero=3, shard=2, mbs=2),
        plan_of(pp=2, y=2, tp=2, mbs=2, schedule="zb-2p"),
        plan_of(pp=2, vpp=2, z=2, tp=2, mbs=2, **four),
        plan_of(pp=2, vpp=2, z=2, tp=2, mbs=2, schedule="zb-v", **four),
        plan_of(pp=4, z=2, mbs=2, **four),
        plan_of(dp=8, mbs=1, offload="optimizer", overlap=()),
    ]
    found = on_ranks(8, differences, TINY, plans)
    assert max(found) < TOLERANCE, found


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_forward_program_has_no_gradient_and_no_buffer_that_training_lacks(
    stage: int, recompute: str
) -> None:
    plan = plan_of(tp=2, z=2, pp=2, mbs=2, recompute=recompute)
    whole, forward = lower(TINY, plan, stage), lower_forward(TINY, plan, stage)
    assert not {op.kind for op in forward.ops if "grad" in op.kind or op.kind == "adamw"}
    assert not [op for op in forward.ops if op.block.phase == BACKWARD]
    kept = {name: buffer for name, buffer in forward.buffers.items() if buffer.persistent}
    assert all(whole.buffers[name] == buffer for name, buffer in kept.items())
    assert not [buffer for buffer in kept.values() if buffer.role in ("gradients", "optimizer")]
    assert forward.peak.total_bytes < whole.peak.total_bytes


def test_a_forward_programs_flops_are_a_third_of_training() -> None:
    """Each matmul has two of its size in the backward pass."""
    plan = plan_of(recompute="none")
    third = lower(TINY, plan).model_flops / 3
    assert lower_forward(TINY, plan).model_flops == pytest.approx(third, rel=0.01)


def test_an_evaluation_takes_each_window_once(tmp_path: Path) -> None:
    """Two batches of two sequences are the four sequences of one batch; a rate of 0 keeps the
    weights alike."""
    losses = []
    for batch, count in ((2, 2), (4, 1)):
        held_out = HeldOut(text="README.md", every=1, batches=count)
        folder = tmp_path / str(batch)
        job = job_of(find_model("tiny-30k"), "dp=1", folder, steps=1, adamw=AdamW(lr=0.0))
        job = replace(job, plan=plan_of(batch=batch, mbs=2), held_out=held_out)
        losses.append(ran(job)[0].steps[-1]["eval_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
