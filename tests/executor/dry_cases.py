"""Which models and plans are played without their machines: all structures that were published.

A kernel, a group and a call of torch follow from which fields of a model and a plan are set, and
their sizes from the sizes. So of all models and plans with the same fields set one is played, on
one rank that follows from its plan. What repeats in it is cut short: of each chunk of a pipeline
two layers are left, the first of which is recomputed where some are, and of the micro-batches twice
as many as stages, so that a schedule comes to its steady state. The order of calls of several
stages is played for every distinct one, of pipelines of 8 stages at most, or 7 where their number
is odd: links take turns in pairs, and differ at the ends alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import cache
from unittest.mock import patch
from zlib import crc32

from topologies.errors import SimgptError
from validation.published.case import case_of
from validation.published.runs import read_runs
from workload.gpt import GPT, find_model, model_names
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.recomputation.parts import PER_OP

LAYERS, ROUNDS = 2, 2  # of a chunk; of micro-batches, as a multiple of the stages
STAGES = 8  # at most, where the order of their calls is played
MANY = 3  # stages and micro-batches from which on a rank's program has nothing new
PRESET_PLANS = ("tp=2,z=4,dp=2,recompute=full,mbs=1", "pp=2,dp=8,zero=1")
Case = tuple[str, GPT, Plan]
SIZES = ("tp", "y", "z", "dp", "shard")
COUNTS = (*SIZES, "pp", "vpp", "stage_layers", "batch", "mbs")


@cache
def published() -> list[Case]:
    """Every model and plan that somebody published a step of, and every preset with plans of 16
    ranks, cut short."""
    found = []
    for run in read_runs():
        try:
            # Whether it fits a machine, which takes minutes to find out for all, is no matter here.
            with patch("validation.published.case.fitting_change", return_value=None):
                job = case_of(run).job
        except SimgptError:
            continue
        if job.plan.training.recompute != PER_OP:  # which is predicted alone
            found.append((run.id, *cut(job.gpt, job.plan)))
    for name in model_names():
        for text in PRESET_PLANS:
            found.append((name, *cut(find_model(name), parse_plan(text, batch=32))))
    return found


def structures() -> list[Case]:
    """The first of all that have the same structure."""
    found: dict[Hashable, Case] = {}
    for name, gpt, plan in published():
        found.setdefault(structure_of(gpt, plan), (name, gpt, plan))
    return list(found.values())


def pipelines() -> list[Case]:
    """The first of all of several stages that issue the same in the same order."""
    found: dict[Hashable, Case] = {}
    for name, gpt, plan in _of_few_stages():
        found.setdefault(order_of(gpt, plan), (name, gpt, plan))
    return list(found.values())


def _of_few_stages() -> Iterator[Case]:
    for name, gpt, plan in published():
        if 1 < plan.pp <= STAGES or plan.pipeline.stage_layers:
            yield name, gpt, plan
        elif plan.pp > STAGES:
            pp = STAGES - plan.pp % 2
            sequences = plan.batch // plan.micro_batches
            batch = sequences * min(plan.micro_batches, ROUNDS * pp)
            layers = LAYERS * pp * plan.vpp
            fewer = plan.changed(pp=pp, batch=batch, ends_as_layers=False)
            yield name, of_layers(gpt, layers), fewer


def cut(gpt: GPT, plan: Plan) -> tuple[GPT, Plan]:
    """A model and its plan with few layers and few micro-batches."""
    word, some, _ = plan.training.recompute.partition(":")
    sequences = plan.batch // plan.micro_batches
    fewer = plan.changed(
        recompute=f"{word}:1" if some else word,
        batch=sequences * min(plan.micro_batches, ROUNDS * plan.pp),
    )
    if plan.pipeline.stage_layers:
        counts = tuple(min(count, LAYERS) for count in plan.pipeline.stage_layers)
        return of_layers(gpt, sum(counts)), fewer.changed(stage_layers=counts)
    chunks = plan.pp * plan.vpp
    ends = 2 if plan.pipeline.ends_as_layers and chunks > 1 else 0
    each = min((gpt.layers + ends) // chunks, LAYERS)
    return of_layers(gpt, each * chunks - ends), fewer


def of_layers(gpt: GPT, layers: int) -> GPT:
    """A model with so many layers, of whose kinds one of each is left where there is room."""
    dense = min(gpt.moe.dense_layers, max(layers - 1, 0))
    letters = "".join(dict.fromkeys(gpt.mtp.pattern + gpt.pattern)) + gpt.pattern
    return gpt.changed(layers=layers, dense_layers=dense, pattern=letters[:layers])


def rank_of(plan: Plan) -> int:
    """Some rank of a plan, always the same."""
    return crc32(str(plan).encode()) % plan.grid.ranks


def structure_of(gpt: GPT, plan: Plan) -> Hashable:
    """Which fields of a model and a plan are set, and which axes have several ranks."""
    heads = 0 < gpt.attention.kv_heads < gpt.attention.heads, gpt.width % 8 == 0
    model = gpt.tied, gpt.norm, gpt.activation, gpt.positions, gpt.biases, gpt.embedding_norm
    set_too = bool(gpt.dropout), bool(gpt.goldfish_k), bool(plan.pipeline.stage_layers)
    depth = min(plan.pp, MANY), min(plan.vpp, 2), min(plan.micro_batches, MANY)
    return model, heads, set_too, depth, _axes(plan), _choices(plan)


def order_of(gpt: GPT, plan: Plan) -> Hashable:
    """What the order of the stages' calls follows from."""
    chunks = plan.pp, plan.vpp, plan.pipeline.stage_layers, plan.micro_batches
    return chunks, _axes(plan), _choices(plan), gpt.layers, gpt.tied


def _axes(plan: Plan) -> tuple[int, ...]:
    return tuple(min(plan.value(axis), 2) for axis in SIZES)


def _choices(plan: Plan) -> str:
    return str({key: value for key, value in plan.as_dict().items() if key not in COUNTS})
