"""Experts' all-to-alls beside the MLP that all tokens pass: what moves, and the time it saves."""

from __future__ import annotations

import pytest

from simulator.engine.simulate import simulate_timeline
from tests.simulator.worlds import SmallCosts, SmallFabric
from tests.workload.test_experts import TWO
from workload.gpt import GPT
from workload.lowering import lower
from workload.op import COMPUTE, EXPERT_COMBINE, EXPERT_DISPATCH
from workload.plan_text import parse_plan
from workload.program import Program
from workload.timeline import Timeline

SHARED = TWO.changed(layers=3, dense_layers=1, shared_ffn=32)
PLAN = "dp=2,ep=2,mbs=2"
MOVED = (EXPERT_DISPATCH, EXPERT_COMBINE)


def program_of(gpt: GPT, rest: str) -> Program:
    return lower(gpt, parse_plan(f"{PLAN},{rest}"))


def played(program: Program, bytes_per_s: float) -> Timeline:
    return simulate_timeline([program], SmallCosts(), SmallFabric(bytes_per_s=bytes_per_s))


def test_all_to_alls_of_rows_have_a_stream_of_their_own_where_there_is_a_shared_mlp() -> None:
    beside, alone = program_of(SHARED, "overlap=shared"), program_of(SHARED, "overlap=none")
    assert [op.name for op in beside.ops] == [op.name for op in alone.ops]
    moved = [op for op in beside.ops if op.stream != COMPUTE]
    assert {op.purpose for op in moved} == set(MOVED)
    assert len(moved) == 2 * 6  # in each of two layers: rows and scores there, rows back; and back
    assert not {op.label for op in moved} & {"dispatch.counts.exchange"}
    without = program_of(SHARED.changed(shared_ffn=0), "overlap=shared")
    assert {op.stream for op in without.ops} == {COMPUTE}


@pytest.mark.parametrize("bytes_per_s", [1e6, 3e7, 1e8, 1e10])
def test_the_step_is_shorter_by_what_is_hidden(bytes_per_s: float) -> None:
    """Exchanges of rows and scores run one after the other, beside half of the shared MLP; then
    rows wait for their own exchange alone."""
    alone = played(program_of(SHARED, "overlap=none"), bytes_per_s)
    layer = [span for span in alone.of_rank(0) if span.op.part.layer == 1]

    def took(start: str, end: str = "") -> float:
        labels = [span.op.label for span in layer]
        last = labels.index(end or start)
        return sum(span.duration_s for span in layer[labels.index(start) : last + 1])

    up = took("shared.up.matmul", "shared.swiglu")
    rows, scores = took("dispatch.exchange"), took("dispatch.scores.exchange")
    sort = took("dispatch.sort.sort_rows")
    hidden = [rows + scores + up + sort - max(max(rows, up) + sort, rows + scores)]
    hidden.append(min(took("combine.exchange"), took("shared.down.matmul")))
    back = took("shared.down.grad.input", "shared.swiglu.grad")
    hidden.append(min(took("combine.grad.exchange"), back))
    unsort, own = took("dispatch.scores.grad.unsort.unsort_rows"), took("dispatch.grad.sum_rows")
    rows, scores = took("dispatch.grad.exchange"), took("dispatch.scores.grad.exchange")
    back = took("shared.up.grad.input", "shared.up.grad.accumulate")
    summed = max(unsort + back, rows) + own
    hidden.append(rows + unsort + scores + back + own - max(summed, max(rows, unsort) + scores))
    beside = played(program_of(SHARED, "overlap=shared"), bytes_per_s)
    assert min(hidden) > 0
    assert alone.step_s - beside.step_s == pytest.approx(2 * sum(hidden), rel=1e-9)
