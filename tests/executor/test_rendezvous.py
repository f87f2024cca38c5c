"""A model of NCCL's blocking rules finds the orders that hang, and none among those in use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest

from executor.nccl.issue_order import Call, Communicator, calls_of, issue_order
from executor.nccl.rendezvous import Calls, among, hang_of, message_rounds
from tests.messages import assert_names
from workload.gpt import find_model
from workload.lowering import lower
from workload.overlaps import OVERLAPS
from workload.pipeline.schedule import STRAIGHT, V_SHAPED
from workload.plan import Plan
from workload.program import Program

TINY = find_model("tiny-30k")
FIRST: Communicator = (("forward", "0"), (0, 1))
SECOND: Communicator = (("backward", "0"), (0, 1))


def call(where: Communicator, *after: int, agreed: str = "", loads: bool = False) -> Call:
    return Call(f"{where[0][0]}.op", agreed, where, after, loads)


def end(*after: int) -> Call:
    return Call("the end", "", ((), ()), after)


def plan_of(pp: int, micro_batches: int = 4, **keys: object) -> Plan:
    cells = int(str(keys.get("z", 1))) * int(str(keys.get("dp", 1)))
    keys = {"batch": micro_batches * cells, "mbs": 1, "precision": "fp32", **keys}
    return Plan.of(pp=pp, **keys)


@cache
def programs_of(plan: Plan) -> list[Program]:
    """Each stage's program of one layer a chunk, lowered once for all rules of issue."""
    gpt = replace(TINY, layers=plan.pp * plan.vpp)
    return [lower(gpt, plan, stage) for stage in range(plan.pp)]


def calls_under(plan: Plan, *, late: bool) -> Calls:
    """What every rank of a plan issues in a step."""
    programs = programs_of(plan)
    orders = [issue_order(program, late=late) for program in programs]
    stages = plan.grid.stages().tolist()
    return {rank: calls_of(programs[s], rank, orders[s]) for rank, s in enumerate(stages)}


def hangs(plans: Sequence[Plan], *, late: bool, loading: bool = False) -> list[tuple[str, str]]:
    """The plans that hang, though the communicators of messages are formed beforehand."""
    found = []
    for plan in plans:
        calls = calls_under(plan, late=late)
        found.append((str(plan), hang_of(calls, message_rounds(calls), loading=loading)))
    return [(plan, hang) for plan, hang in found if hang]


def pipelines(stages: range, chunks: range) -> Iterator[Plan]:
    """Every schedule and interleaving, with and without sends beside compute, with fewer
    micro-batches than stages and with more."""
    for pp in stages:
        for overlap in (OVERLAPS, ()):
            for schedule in STRAIGHT:
                for count in (1, pp - 1, pp, 2 * pp + 1):
                    yield plan_of(pp, count, schedule=schedule, overlap=overlap)
            for count in (2 * pp, 2 * pp + 1, 4 * pp) if chunks else ():
                for schedule in V_SHAPED:
                    yield plan_of(pp, count, vpp=2, schedule=schedule, overlap=overlap)
                yield plan_of(pp, count // 3, vpp=2, schedule="zb-v", overlap=overlap)
            for vpp in chunks:
                for count in (pp, 2 * pp):
                    yield plan_of(pp, count, vpp=vpp, overlap=overlap)


CROSSED = [  # every axis beside pipe, alone and together
    plan_of(2, tp=2, schedule="zb-h1"),
    plan_of(3, y=2, schedule="gpipe", overlap=()),
    plan_of(2, z=2, vpp=2),
    plan_of(4, dp=2, zero=2, schedule="zb-2p"),
    plan_of(2, tp=2, z=2, dp=2, recompute="full"),
    plan_of(2, tp=2, sp=True, vpp=2, zero=3, dp=2, order="pp-tp-z-y-dp"),
]


def test_calls_in_one_order_come_to_an_end() -> None:
    calls = [call(FIRST), call(SECOND), end(0, 1)]
    assert hang_of({0: calls, 1: calls}) == ""


def test_hosts_that_form_two_communicators_in_opposite_orders_hang() -> None:
    one, other = [call(FIRST), call(SECOND), end()], [call(SECOND), call(FIRST), end()]
    assert_names(hang_of({0: one, 1: other}), *("rank 0", "forward.op", "rank 1", "backward.op"))
    assert hang_of({0: one, 1: other}, [FIRST[0], SECOND[0]]) == ""
    assert hang_of({0: one, 1: other}, [FIRST[0]]) == ""


def test_ranks_that_wait_for_different_calls_before_issuing_the_others_hang() -> None:
    formed = [FIRST[0], SECOND[0]]
    one = [call(FIRST), call(SECOND, 0), end(1)]
    other = [call(SECOND), call(FIRST, 0), end(1)]
    found = hang_of({0: one, 1: other}, formed)
    assert_names(found, *("rank 0", "forward.op", "rank 1", "backward.op"))
    assert hang_of({0: one, 1: [call(SECOND), call(FIRST), end(0, 1)]}, formed) == ""


def test_calls_of_one_communicator_happen_in_the_order_of_issue() -> None:
    one = [call(FIRST, agreed="a"), call(FIRST, agreed="b"), end(0, 1)]
    other = [call(FIRST, agreed="b"), call(FIRST, agreed="a"), end(0, 1)]
    assert hang_of({0: one, 1: one}) == ""
    assert_names(hang_of({0: one, 1: other}), "rank 0", "forward.op")


def test_a_rank_that_never_comes_is_waited_for() -> None:
    found = hang_of({0: [call(FIRST), end(0)], 1: [end()]}, [FIRST[0]])
    assert_names(found, "rank 0", "forward.op", "forward 0", "ranks 0, 1")
    assert "rank 1" not in found


def test_a_kernel_that_is_loaded_behind_a_posted_receive_waits_for_its_sender() -> None:
    formed = [FIRST[0], SECOND[0]]
    early = [call(SECOND), call(FIRST, loads=True), end(0, 1)]
    late = [call(FIRST, loads=True), call(SECOND), end(0, 1)]
    other = [call(FIRST), call(SECOND, 0), end(1)]
    assert hang_of({0: early, 1: other}, formed) == ""
    assert_names(hang_of({0: early, 1: other}, formed, loading=True), "rank 0", "forward.op")
    assert hang_of({0: late, 1: other}, formed, loading=True) == ""


def test_ranks_that_are_left_out_are_in_no_communicator() -> None:
    wide: Communicator = (("", "tp"), (0, 1, 2, 3))
    calls = {rank: [call(wide), end(0)] for rank in range(4)}
    assert among([0, 2], calls)[0][0].communicator == (("", "tp"), (0, 2))
    assert hang_of(among([0, 2], calls)) == ""


@pytest.mark.slow
def test_without_an_exchange_beforehand_every_pipeline_of_early_receives_hangs() -> None:
    # Stage 0 begins with a receive from stage 1, stage 1 with one from stage 0: two communicators,
    # and each host stays in the one that it forms.
    found = hang_of(calls_under(plan_of(2), late=False))
    assert_names(found, *("rank 0", "m0.c0.grad.recv", "rank 1", "m0.c1.input.recv"))
    for plan in pipelines(range(2, 3), range(2, 3)):
        assert hang_of(calls_under(plan, late=False))


@pytest.mark.parametrize("late", [False, True])
def test_pipelines_of_formed_communicators_come_to_an_end(late: bool) -> None:
    assert hangs([*pipelines(range(2, 3), range(2, 3)), *CROSSED], late=late) == []


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_more_pipelines_hang_without_formed_communicators_and_come_to_an_end_with_them(
    late: bool,
) -> None:
    assert hangs([*pipelines(range(3, 4), range(2, 4))], late=late) == []
    for plan in pipelines(range(3, 4), range(2, 3)):
        assert late or hang_of(calls_under(plan, late=False))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("stages", range(2, 9))
def test_all_pipelines_of_up_to_eight_stages_come_to_an_end(stages: int, late: bool) -> None:
    assert hangs([*pipelines(range(stages, stages + 1), range(2, 5))], late=late) == []


def test_late_receives_let_kernels_load_where_early_ones_hang() -> None:
    plain = [plan for plan in pipelines(range(2, 4), range(0)) if plan.micro_batches > 1]
    assert hangs(plain, late=True, loading=True) == []
    assert len(hangs(plain, late=False, loading=True)) == len(plain)
