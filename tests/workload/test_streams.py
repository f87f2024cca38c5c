"""What an op beside compute touches is there: whoever brought it on the same stream was awaited.

A GPU's stream is in order, but exchanges between two neighbours on a CPU are not.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.executor.covering import Case, case, covering
from tests.executor.test_parity_experts import MIXTRAL
from workload.gpt import GPT
from workload.lowering import lower
from workload.lowering.host_update import UPDATE
from workload.op import COMPUTE
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program


def races(program: Program) -> list[tuple[str, str]]:
    """Two ops of one stream, the first of which writes what the second reads or writes, with no
    wait for the first before the second is issued. Compute and the host's own are in order."""
    awaited: dict[str, int] = {}
    writers: dict[tuple[str, str], int] = {}
    found = []
    for index, op in enumerate(program.ops):
        for other in program.waits[index]:
            stream = program.ops[other].stream
            awaited[stream] = max(awaited.get(stream, -1), other)
        if op.stream in (COMPUTE, UPDATE):
            continue
        for name in (*op.reads, *op.writes):
            first = writers.get((op.stream, name), -1)
            if first > awaited.get(op.stream, -1):
                found.append((program.ops[first].label, op.label))
        writers |= {(op.stream, name): index for name in op.writes}
    return found


def stages(cases: list[Case]) -> list[tuple[GPT, Plan, int]]:
    return [(gpt, plan, stage) for gpt, plan in cases for stage in {0, plan.pp - 1}]


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_no_op_touches_what_may_still_be_on_its_way_on_its_stream(every: int) -> None:
    """Under plans in which every pair of options meets, all in the slow run."""
    cases = [case(row) for row in covering(8)]
    assert sum(plan.cp == 4 and plan.pipeline.schedule.startswith("zb") for _, plan in cases) > 2
    racing = [
        (str(plan), found[0])
        for gpt, plan, stage in stages(cases[::every])
        if (found := races(lower(gpt, plan, stage)))
    ]
    assert racing == []


@pytest.mark.parametrize(
    "text",
    [
        "cp=4,recompute=full,schedule=zb-h1",
        "pp=2,vpp=2,cp=4,schedule=zb-v,mbs=1",
        "dp=4,ep=2,overlap=a2a+shared",
        "dp=4,ep=2,overlap=a2a+wgrad,cp=4",
        "pp=2,dp=2,ep=2,overlap=a2a+wgrad,cp=4,vpp=2,mbs=1",
        "dp=2,ep=2,dispatcher=hierarchical",
    ],
)
def test_experts_beside_parts_of_sequences_wait_for_each_other(text: str) -> None:
    assert races(lower(replace(MIXTRAL, layers=4), parse_plan(f"batch=16,{text}"))) == []
