"""Which models and plans are played without their machines: every distinct one that was published.

What repeats is cut short. Of each chunk of a pipeline two layers are left, the first of which is
recomputed where some are, and of the micro-batches twice as many as stages, so that a schedule
comes to its steady state. Layers and micro-batches beyond these ask for nothing that those before
them did not. What is then equal but for its name is played once, on one rank that follows from the
plan; so are the stages of plans that issue the same in the same order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import cache
from unittest.mock import patch
from zlib import crc32

from topologies.errors import SimgptError
from validation.published.case import case_of
from validation.published.runs import read_runs
from workload.gpt import GPT, find_model, model_names
from workload.plan import Plan
from workload.plan_text import parse_plan

LAYERS, ROUNDS = 2, 2  # of a chunk; of micro-batches, as a multiple of the stages
PRESET_PLANS = ("x=2,z=4,data=2,recompute=full,micro_batch=1", "pipe=2,data=8,zero=1")
Case = tuple[str, GPT, Plan]
SIZES = ("x", "y", "z", "data", "shard")
UNORDERED = (*SIZES, "batch", "micro_batch")


@cache
def distinct() -> list[Case]:
    """What stands for every model and plan that somebody published a step of, and for every preset
    with plans of 16 ranks."""
    found: dict[tuple[GPT, Plan], str] = {}
    for name, gpt, plan in _every():
        short, fewer = cut(gpt, plan)
        found.setdefault((replace(short, name="any", source=""), fewer), name)
    return [(name, gpt, plan) for (gpt, plan), name in found.items()]


def _every() -> Iterator[Case]:
    for run in read_runs():
        try:
            # Whether it fits a machine, which takes minutes to find out for all, is no matter here.
            with patch("validation.published.case.fitting_change", return_value=None):
                job = case_of(run).job
        except SimgptError:
            continue
        yield run.id, job.gpt, job.plan
    for name in model_names():
        for text in PRESET_PLANS:
            yield name, find_model(name), parse_plan(text, batch=32)


def cut(gpt: GPT, plan: Plan) -> tuple[GPT, Plan]:
    """A model and its plan with few layers and few micro-batches."""
    word, some, _ = plan.recompute.partition(":")
    sequences = plan.batch // plan.micro_batches
    fewer = replace(
        plan,
        recompute=f"{word}:1" if some else word,
        batch=sequences * min(plan.micro_batches, ROUNDS * plan.pipe),
    )
    if plan.stage_layers:
        counts = tuple(min(count, LAYERS) for count in plan.stage_layers)
        return replace(gpt, layers=sum(counts)), replace(fewer, stage_layers=counts)
    chunks = plan.pipe * plan.interleave
    ends = 2 if plan.ends_as_layers and chunks > 1 else 0
    each = min((gpt.layers + ends) // chunks, LAYERS)
    return replace(gpt, layers=each * chunks - ends), fewer


def rank_of(plan: Plan) -> int:
    """Some rank of a plan, always the same."""
    return crc32(str(plan).encode()) % plan.grid.ranks


def order_of(gpt: GPT, plan: Plan) -> Hashable:
    """What the order of the stages' calls follows from: the plan, of its axes whether they are more
    than one, the layers, and whether both ends hold the embedding's table."""
    sizes = {key: min(getattr(plan, key), 2) for key in SIZES}
    kept = {key: value for key, value in plan.as_dict().items() if key not in UNORDERED}
    return str(sizes), str(kept), plan.micro_batches, gpt.layers, gpt.tied
