"""Schedules, groups of decay and clipping against torch's own, in float64, under several plans."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from executor.groups import ProcessGroups
from executor.launching.task_specs import AdamW
from executor.train import Trainer
from executor.training.learning_rate import Schedule
from tests.executor.ranks import TIMEOUT_S, on_ranks
from tests.executor.test_parity import BATCH, TINY, TOLERANCE, _weight_error, batches, start
from tests.reference import ReferenceGPT
from workload.lowering import lower
from workload.plan import Plan

ADAMW = AdamW(lr=1e-2, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.3, clip=0.5)
STEPS, WARMUP, LEAST = 5, 2, 1e-3
# By hand: the warm-up in two steps, then three to fall; wsd falls in its last two.
RATES = {
    "constant": [5e-3, 1e-2, 1e-2, 1e-2, 1e-2],
    "cosine": [5e-3, 1e-2, 7.75e-3, 3.25e-3, 1e-3],
    "linear": [5e-3, 1e-2, 7e-3, 4e-3, 1e-3],
    "wsd": [5e-3, 1e-2, 1e-2, 5.5e-3, 1e-3],
}
Found = tuple[list[float], list[float], dict[str, torch.Tensor]]


def plan_of(**fields: object) -> Plan:
    return Plan.of(**{"batch": BATCH, "mbs": 4, "precision": "fp64", **fields})


PLANS = {
    "constant": plan_of(tp=2, sp=True),
    "cosine": plan_of(pp=2),
    "linear": plan_of(dp=2, zero=3),
    "wsd": plan_of(z=2, recompute="full"),
}


def texts() -> list[torch.Tensor]:
    drawn = (batches(replace(TINY, vocab=vocab)) for vocab in (TINY.vocab, 200, 150))
    return [batch for each in drawn for batch in each][:STEPS]


@cache
def reference(kind: str) -> Found:
    """Losses, norms before clipping and last weights of a plain loop with torch's own parts."""
    model = ReferenceGPT(start(TINY), heads=TINY.attention.heads)
    named = dict(model.named_parameters())
    plain = [p for name, p in named.items() if name.endswith(".b") or "norm" in name]
    decayed = [p for name, p in named.items() if not (name.endswith(".b") or "norm" in name)]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=1e-2, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3)
    # It is asked for one step more than there is.
    rates = [*RATES[kind], 0.0]
    schedule = torch.optim.lr_scheduler.LambdaLR(adamw, lambda step: rates[step] / 1e-2)
    losses, norms = [], []
    for batch in texts():
        loss = model.loss(batch[:, :-1], batch[:, 1:])
        adamw.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), ADAMW.clip).item())
        adamw.step()
        schedule.step()
        losses.append(loss.item())
    return losses, norms, model.copy_of_weights()


def differences(rank: int, cases: list[tuple[str, Plan]]) -> list[float]:
    """The worst relative error of each case: of losses, of norms, of rates and of weights."""
    groups, found = ProcessGroups(rank, TIMEOUT_S), []
    for kind, plan in cases:
        decay = {"constant": 0, "wsd": 2}.get(kind, 3)
        schedule = Schedule(kind=kind, warmup_steps=WARMUP, decay_steps=decay, least=LEAST)
        program = lower(TINY, plan, plan.grid.coordinates(rank)["pp"])
        trainer = Trainer(
            program,
            groups,
            rank=rank,
            device=torch.device("cpu"),
            adamw=ADAMW,
            lr_of=lambda step, schedule=schedule: schedule.rate(step, lr=ADAMW.lr, steps=STEPS),  # type: ignore[misc]
        )
        whole = start(TINY)
        trainer.start_from((name, whole[name]) for name in program.layouts)
        steps = trainer.run(texts()).steps
        losses, norms, weights = reference(kind) if rank == 0 else ([], [], {})
        mine = steps if rank == 0 else []
        pairs = [(step.loss, loss) for step, loss in zip(mine, losses, strict=True)]
        pairs += [(step.grad_norm, norm) for step, norm in zip(mine, norms, strict=True)]
        pairs += [(step.lr, lr) for step, lr in zip(steps, RATES[kind], strict=True)]
        worst = max(abs(a - b) / b for a, b in pairs)
        found.append(max(worst, _weight_error(trainer, weights)))
    return found


@pytest.mark.distributed
@pytest.mark.parametrize(
    "kinds", [["linear"], pytest.param([*PLANS], marks=pytest.mark.slow)], ids=["linear", "all"]
)
def test_every_schedule_trains_as_torchs_own_adamw_and_scheduler_do(kinds: list[str]) -> None:
    """Some steps are clipped and some are not, so that both are compared."""
    for kind in kinds:
        assert min(reference(kind)[1]) < ADAMW.clip < max(reference(kind)[1])
    found = on_ranks(2, differences, [(kind, PLANS[kind]) for kind in kinds])
    assert max(found) < TOLERANCE, dict(zip(kinds, found, strict=True))


@pytest.mark.distributed
@pytest.mark.slow
def test_the_norm_of_every_plan_is_that_of_the_plain_model() -> None:
    plans = [
        plan_of(tp=2, y=2, z=2),
        plan_of(tp=2, dp=2, pp=2, zero=2),
        plan_of(z=2, dp=4, zero=3, shard=2, mbs=2),
        plan_of(pp=2, y=2, tp=2, mbs=2, schedule="zb-h1"),
        plan_of(dp=8, mbs=2, offload="optimizer"),
    ]
    found = on_ranks(8, differences, [("cosine", plan) for plan in plans])
    assert max(found) < TOLERANCE, found
