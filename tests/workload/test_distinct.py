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
    "tp=2,z=2,dp=2,mbs=1",
    "dp=4,zero=1,mbs=1,offload=optimizer",
    "tp=2,z=2,optimizer=muon",
    "z=2,dp=2,zero=3,recompute=full:2,mbs=1",
    "pp=4,vpp=2,dp=2,mbs=1,recompute=selective,attention=unfused",
    "pp=3,stage_layers=2+4+2,schedule=zb-h1,mbs=1",
    "pp=2,vpp=2,schedule=dualpipe-v,mbs=1",
    "tp=2,sp=true,pp=2,mbs=1,overlap=none",
]


@pytest.mark.parametrize("text", one_in(2, PLANS))
def test_no_op_of_any_rank_is_missing_among_the_distinct_ones(text: str) -> None:
    gpt = replace(TINY, layers=8)
    plan = parse_plan(text, batch=16)
    known = distinct_ops(gpt, plan)
    for stage in range(plan.pp):
        for op in lower(gpt, plan, stage).ops:
            assert op.communicates or op.kind == "fence" or signature(op) in known, op.name


def test_there_are_few_of_them() -> None:
    plan = parse_plan("tp=2,mbs=1", batch=16)
    assert len(distinct_ops(replace(TINY, layers=48), plan)) < 60


def test_an_op_that_was_not_measured_is_refused_by_name() -> None:
    op, _ = next(iter(distinct_ops(TINY, parse_plan("tp=1")).values()))
    assert MeasuredCosts({signature(op): 2.5}, 1.0).seconds(op) == 2.5
    with pytest.raises(MachineError, check=names(op.name, op.kind, "bf16")):
        MeasuredCosts({}, 1.0).seconds(op)
