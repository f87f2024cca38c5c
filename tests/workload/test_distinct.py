"""The distinct ops of a plan: all that any of its stages performs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.costs.measured import MeasuredCosts
from tests.examples import one_in
from tests.messages import names
from tests.simulator.worlds import TINY
from topologies.errors import MachineError
from workload.lowering import lower
from workload.lowering.distinct import distinct_ops, signature
from workload.plan_text import parse_plan

PLANS = [
    "x=2,z=2,data=2,micro_batch=1",
    "data=4,zero=1,micro_batch=1,offload=optimizer",
    "x=2,z=2,optimizer=muon",
    "z=2,data=2,zero=3,recompute=full:2,micro_batch=1",
    "pipe=4,interleave=2,data=2,micro_batch=1,recompute=selective,attention=unfused",
    "pipe=3,stage_layers=2+4+2,schedule=zb-h1,micro_batch=1",
    "pipe=2,interleave=2,schedule=dualpipe-v,micro_batch=1",
    "x=2,sequence_parallel=true,pipe=2,micro_batch=1,overlap=none",
]


@pytest.mark.parametrize("text", one_in(2, PLANS))
def test_no_op_of_any_rank_is_missing_among_the_distinct_ones(text: str) -> None:
    gpt = replace(TINY, layers=8)
    plan = parse_plan(text, batch=16)
    known = distinct_ops(gpt, plan)
    for stage in range(plan.pipe):
        for op in lower(gpt, plan, stage).ops:
            assert op.communicates or op.kind == "fence" or signature(op) in known, op.name


def test_there_are_few_of_them() -> None:
    plan = parse_plan("x=2,micro_batch=1", batch=16)
    assert len(distinct_ops(replace(TINY, layers=48), plan)) < 60


def test_an_op_that_was_not_measured_is_refused_by_name() -> None:
    op, _ = next(iter(distinct_ops(TINY, parse_plan("x=1")).values()))
    assert MeasuredCosts({signature(op): 2.5}, 1.0).seconds(op) == 2.5
    with pytest.raises(MachineError, check=names(op.name, op.kind, "bf16")):
        MeasuredCosts({}, 1.0).seconds(op)
