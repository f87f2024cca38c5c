"""Groups of messages, the order in which receives are issued, and their first exchange."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from executor.groups import ProcessGroups
from executor.job import connected
from executor.launching.launch_env import RankInfo
from executor.nccl.issue_order import issue_order, members_of, round_of
from executor.prepared import prepare
from executor.train import Trainer
from tests.blocks import BLOCK
from tests.executor.ranks import TIMEOUT_S, on_ranks
from tests.executor.test_parity import ADAMW, BATCH, TINY, batches, reference, start
from tests.messages import assert_names
from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.grid import Grid
from workload.lowering import lower
from workload.op import Op
from workload.overlaps import OVERLAPS
from workload.plan import Plan
from workload.program import Program

DEEP = replace(TINY, layers=6)


def plan_of(pp: int, *, overlap: tuple[str, ...] = OVERLAPS, **keys: object) -> Plan:
    """Four micro-batches, or as many as interleaving wants."""
    sizes = {"batch": BATCH, "mbs": BATCH // 4, "precision": "fp64", **keys}
    return Plan.of(pp=pp, overlap=overlap, **sizes)


def messages_of(plan: Plan) -> list[tuple[int, Op]]:
    """Every rank's messages in a step."""
    gpt = replace(TINY, layers=plan.pp * plan.vpp)
    programs = [lower(gpt, plan, stage) for stage in range(plan.pp)]
    stages = plan.grid.stages().tolist()
    return [(r, op) for r, s in enumerate(stages) for op in programs[s].ops if op.is_message]


def rings() -> list[Plan]:
    """Rings of two to nine stages with every link in use, alone and beside other axes."""
    plans = [plan_of(p, vpp=2, batch=2 * p, mbs=1, precision="fp32") for p in range(2, 10)]
    return [*plans, replace(plans[1], tp=2), replace(plans[0], z=2, batch=8)]


# Of odd and even length, alone and beside another axis.
SOME = [
    pytest.param(plan, marks=[] if at in (0, 1, 2, 8) else pytest.mark.slow)
    for at, plan in enumerate(rings())
]


@pytest.mark.parametrize("plan", SOME, ids=str)
def test_no_group_carries_messages_of_two_directions_or_of_two_links(plan: Plan) -> None:
    carried: dict[object, set[tuple[str, int]]] = {}
    senders: dict[object, set[int]] = {}
    for rank, op in messages_of(plan):
        group = (round_of(op, plan.grid), members_of(op, plan.grid, rank))
        way = op.stream.partition(".")[2]
        carried.setdefault(group, set()).add((way, op.attributes["link"]))
        if op.kind == "send":
            senders.setdefault(group, set()).add(rank)
    assert {len(uses) for uses in carried.values()} == {1}
    assert {len(ranks) for ranks in senders.values()} == {1}
    # Each rank of each stage sends and receives forward and backward.
    assert len(carried) == 2 * plan.grid.ranks


@pytest.mark.parametrize("plan", SOME, ids=str)
def test_a_rank_is_in_one_group_of_a_round_at_most(plan: Plan) -> None:
    groups = {
        (rank, round_of(op, plan.grid), members_of(op, plan.grid, rank))
        for rank, op in messages_of(plan)
    }
    assert set(Counter((rank, key) for rank, key, _ in groups).values()) == {1}


def program_of(plan: Plan, stage: int) -> Program:
    return lower(replace(TINY, layers=plan.pp), plan, stage)


def kinds(program: Program, order: Sequence[int]) -> list[str]:
    """Messages, and what waits for them, by name."""
    ops = [program.ops[index] for index in order]
    return [op.name for op in ops if op.is_message or op.name.endswith((".arrived", ".sent"))]


def test_receives_are_posted_early_or_just_before_they_are_waited_for() -> None:
    plan = plan_of(2, mbs=BATCH // 2, overlap=("pp",))
    program = program_of(plan, 0)
    assert kinds(program, issue_order(program, late=False)) == [
        "m0.c0.grad.recv",
        "m0.c0.output.send",
        "m0.c0.output.sent",
        "m1.c0.output.send",
        "m1.c0.grad.recv",
        "m0.c0.grad.arrived",
        "m1.c0.output.sent",
        "m1.c0.grad.arrived",
    ]
    # The first send may wait for a stage that itself waits for a receive of this one.
    assert kinds(program, issue_order(program, late=True)) == [
        "m0.c0.output.send",
        "m0.c0.grad.recv",
        "m0.c0.output.sent",
        "m1.c0.output.send",
        "m0.c0.grad.arrived",
        "m1.c0.grad.recv",
        "m1.c0.output.sent",
        "m1.c0.grad.arrived",
    ]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("stage", range(3))
def test_every_op_is_issued_once_and_all_but_receives_in_the_programs_order(
    stage: int, late: bool
) -> None:
    program = program_of(plan_of(3), stage)
    order = issue_order(program, late=late)
    assert sorted(order) == list(range(len(program.ops)))
    others = [index for index in order if program.ops[index].kind != "recv"]
    assert others == sorted(others)
    for way in ("recv.forward", "recv.backward"):
        stream = [index for index in order if program.ops[index].stream == way]
        assert stream == sorted(stream)


def hanging(program: Program) -> list[int]:
    """Receives behind whatever does not wait for them: two stages then wait in their sends."""
    order = [index for index, op in enumerate(program.ops) if op.kind != "recv"]
    for index, op in enumerate(program.ops):
        if op.kind == "recv":
            fence = next(n for n, waits in enumerate(program.waits) if index in waits)
            order.insert(order.index(fence), index)
    return order


def refusal(rank: int) -> str:
    program = program_of(plan_of(2, overlap=()), rank)
    groups = ProcessGroups(rank, TIMEOUT_S)
    groups.prepare(program)
    groups.check(program, issue_order(program, late=False))
    try:
        groups.check(program, hanging(program))
    except PlanCannotRunError as error:
        return str(error)
    return ""


@pytest.mark.distributed
def test_an_order_in_which_stages_wait_for_each_other_is_refused_before_the_first_step() -> None:
    said = on_ranks(2, refusal)
    assert_names(said, "rank 0", "m1.c0.output.send", "rank 1", "m0.c1.input.grad.send")


def exchanged(rank: int) -> list[tuple[str, int]]:
    """What a rank starts while its groups are made: which call, and the other side."""
    started: list[tuple[str, int]] = []
    send, receive = dist.isend, dist.irecv

    def isend(tensor: torch.Tensor, other: int, group: dist.ProcessGroup) -> dist.Work | None:
        started.append(("send", other))
        return send(tensor, other, group)

    def irecv(tensor: torch.Tensor, other: int, group: dist.ProcessGroup) -> dist.Work | None:
        started.append(("recv", other))
        return receive(tensor, other, group)

    dist.isend, dist.irecv = isend, irecv  # type: ignore[assignment]
    groups = ProcessGroups(rank, TIMEOUT_S)
    programs = [program_of(plan_of(3), stage) for stage in range(3)]
    groups.prepare(programs[rank])
    first = list(started)
    groups.prepare(programs[rank])
    assert started == first, "groups that are made need no second exchange"
    dist.isend, dist.irecv = send, receive
    everyone: list[list[tuple[str, int]]] = [[] for _ in range(3)]
    dist.all_gather_object(everyone, first)
    return [(f"{rank} {kind}", other) for rank in range(3) for kind, other in everyone[rank]]


@pytest.mark.distributed
def test_neighbouring_stages_exchange_a_number_over_each_link_before_the_first_step() -> None:
    # Backward before forward and even links before odd ones, on every rank.
    assert on_ranks(3, exchanged) == [
        *[("0 recv", 1), ("0 send", 1)],
        *[("1 send", 0), ("1 recv", 2), ("1 recv", 0), ("1 send", 2)],
        *[("2 send", 1), ("2 recv", 1)],
    ]


def late_losses(rank: int, gpt: GPT, plans: list[Plan]) -> list[list[float]]:
    groups, found = ProcessGroups(rank, TIMEOUT_S), []
    for plan in plans:
        program = lower(gpt, plan, plan.grid.coordinates(rank)["pp"])
        cpu = torch.device("cpu")
        trainer = Trainer(program, groups, rank=rank, device=cpu, adamw=ADAMW)
        assert list(trainer.order) == list(range(len(program.ops)))
        order = issue_order(program, late=True)
        groups.check(program, order)
        trainer.prepared = prepare(program, trainer.table, groups, trainer.place, order)
        whole = start(gpt)
        trainer.start_from((name, whole[name]) for name in program.layouts)
        run = trainer.run(batches(gpt))
        found.append([step.loss for step in run.steps])
    return found


@pytest.mark.distributed
def test_pipelines_whose_receives_come_late_train_as_the_plain_model_does() -> None:
    plans = [plan_of(3, schedule="zb-h1")]
    expected, _ = reference(DEEP)
    for losses in on_ranks(3, late_losses, DEEP, plans):
        assert losses == pytest.approx(expected, rel=1e-9)


def members_after(
    rank: int, cases: Sequence[tuple[GPT, Plan]]
) -> list[tuple[list[int], list[int]]]:
    """Members of the groups of the last plan's ops on all ranks, and who should be: groups are kept
    from plan to plan."""
    groups = ProcessGroups(rank, TIMEOUT_S)
    for gpt, plan in cases:
        program = lower(gpt, plan, plan.grid.coordinates(rank)["pp"])
        groups.prepare(program)
    mine = [
        (dist.get_process_group_ranks(groups.of(op)), list(members_of(op, plan.grid, rank)))
        for op in program.ops
        if op.communicates
    ]
    everyone: list[list[tuple[list[int], list[int]]]] = [[] for _ in range(plan.grid.ranks)]
    dist.all_gather_object(everyone, mine)
    return [pair for pairs in everyone for pair in pairs]


@pytest.mark.distributed
def test_plans_of_one_grid_whose_messages_go_further_have_groups_of_their_own() -> None:
    deep = replace(TINY, layers=8)
    pairs = on_ranks(4, members_after, [(deep, plan_of(4, vpp=n)) for n in (1, 2)])
    assert any(expected == [0, 3] for _, expected in pairs)
    assert [found for found, _ in pairs] == [expected for _, expected in pairs]


@pytest.mark.distributed
def test_a_stage_that_had_no_layers_in_another_plan_has_groups_for_those_it_has_now() -> None:
    cases = [
        (replace(TINY, layers=sum(layers)), plan_of(3).changed(tp=2, stage_layers=layers))
        for layers in ((1, 0, 1), (1, 1, 1))
    ]
    pairs = on_ranks(6, members_after, cases)
    assert any(expected == [2, 3] for _, expected in pairs)
    assert [found for found, _ in pairs] == [expected for _, expected in pairs]


def test_the_ends_of_a_ring_of_odd_length_have_a_round_of_their_own() -> None:
    grid = Grid(pp=3)
    op = Op(
        "m",
        "send",
        ("a",),
        ("b",),
        BLOCK,
        "send.forward",
        ("pp",),
        attributes={"link": 2, "peer": 1},
    )
    assert round_of(op, grid) == ("forward", "last")
    assert members_of(op, grid, 0) == members_of(op, grid, 2) == (0, 2)


class Options:
    """A stand-in for those of a process group of NCCL."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout = timedelta(0)


def test_communicators_of_nccl_take_streams_of_high_priority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", SimpleNamespace(Options=Options), raising=False)
    monkeypatch.setattr(dist, "new_group", lambda members, **how: made.append(how))
    monkeypatch.setattr(dist, "all_gather_object", lambda to, own: to.__setitem__(0, own))
    plan = plan_of(1, dp=2, mbs=BATCH // 2)
    ProcessGroups(0, 7.0).prepare(lower(TINY, plan))
    options = [how["pg_options"] for how in made]
    assert options
    assert len({id(one) for one in options}) == len(options), "torch writes into them"
    assert all(one.is_high_priority_stream for one in options)
    # torch warns where the options' own differs.
    assert {one._timeout for one in options} == {timedelta(seconds=7)}


def test_a_job_on_a_gpu_binds_it_so_that_communicators_are_made_with_their_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: dict[str, Any] = {}
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr("executor.job._device", lambda *_: gpu)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **how: told.update(how))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    with connected(RankInfo(0, 1, 0), 1, 1.0) as device:
        assert device == told["device_id"] == gpu
