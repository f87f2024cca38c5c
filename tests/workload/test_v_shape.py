"""Schedules in the shape of a V, by hand and against PyTorch's own lists of actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from simulator.pipeline.schedule_sim import schedule_of, simulate_schedule
from tests.messages import names
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import find_model
from workload.lowering import lower
from workload.pipeline.chunk_places import ChunkPlaces
from workload.pipeline.schedule import FORWARD, V_SHAPED, WEIGHT, Slot, slots
from workload.pipeline.slot import INPUT
from workload.plan_text import parse_plan

WORKS = {
    "FORWARD": [FORWARD],
    "BACKWARD_INPUT": [INPUT],
    "BACKWARD_WEIGHT": [WEIGHT],
    "FULL_BACKWARD": [INPUT, WEIGHT],
}
CLASSES = {"zb-v": "ScheduleZBVZeroBubble", "dualpipe-v": "ScheduleDualPipeV"}


def test_the_model_runs_down_the_stages_and_back() -> None:
    places = ChunkPlaces(3, 2, in_v=True)
    assert [places.numbers(stage) for stage in range(3)] == [[0, 5], [1, 4], [2, 3]]
    assert [places.stage(number) for number in range(6)] == [0, 1, 2, 2, 1, 0]
    assert [places.link(number) for number in (1, 2, 4, 5)] == [0, 1, 1, 0]
    assert places.head_stage == 0
    assert [number for number in range(6) if places.meets(number)] == [3]
    ring = ChunkPlaces(3, 2)
    assert [ring.numbers(stage) for stage in range(3)] == [[0, 3], [1, 4], [2, 5]]
    assert [ring.link(number) for number in range(1, 6)] == [0, 1, 2, 0, 1]
    assert ring.head_stage == 2


def test_zb_v_on_two_stages_worked_out_by_hand() -> None:
    """Letters of the second chunk are large."""

    def text(stage: int) -> str:
        letters = {FORWARD: "f", INPUT: "b", WEIGHT: "w"}
        found = [(letters[s.work], s.chunk, s.micro_batch) for s in slots("zb-v", stage, 2, 4, 2)]
        return " ".join(f"{a.upper() if chunk else a}{m}" for a, chunk, m in found)

    assert text(0) == ("f0 f1 f2 F0 B0 W0 F1 B1 W1 f3 b0 w0 F2 B2 W2 b1 w1 F3 B3 W3 b2 w2 b3 w3")
    assert text(1) == ("f0 F0 f1 F1 B0 W0 f2 b0 w0 F2 B1 W1 f3 b1 w1 F3 B2 W2 b2 B3 b3 w2 W3 w3")


def theirs(schedule: str, stage: int, stages: int, micro_batches: int) -> Iterator[Slot]:
    """What PyTorch's schedule of that name lists, whole backward passes as their two halves."""
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    about: Any = SimpleNamespace(
        pp_group_size=stages, num_stages=2 * stages, _n_microbatches=micro_batches
    )
    kind = getattr(torch_schedules, CLASSES[schedule])
    for action in kind._calculate_single_rank_operations(about, stage):
        for each in () if action is None else action.sub_actions or (action,):
            for work in WORKS[each.computation_type.name]:
                yield Slot(work, int(each.stage_index != stage), each.microbatch_index)


@pytest.mark.parametrize("schedule", V_SHAPED)
@pytest.mark.parametrize(
    "stages", [2, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 5, 8))]
)
def test_orders_are_those_of_pytorch(stages: int, schedule: str) -> None:
    first = 1 if schedule == "zb-v" else 2 * stages
    for count in (first, first + 1, 2 * stages, 2 * stages + 3, 4 * stages):
        for stage in range(stages):
            expected = tuple(theirs(schedule, stage, stages, count))
            assert slots(schedule, stage, stages, count, 2).slots == expected


def orders_of(schedule: str, stages: int, count: int) -> list[tuple[Slot, ...]]:
    return [slots(schedule, stage, stages, count, 2).slots for stage in range(stages)]


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("turns", [2, 4])
def test_zb_v_pauses_nowhere_and_holds_as_much_as_1f1b(stages: int, turns: int) -> None:
    """A slot takes a tick, a message none: 6 ticks a micro-batch, behind as many as there are
    stages before. 2 stages half chunks are the first stage's memory in 1F1B.

    Source: Qi et al. (2401.10241), section 6.
    """
    count = turns * stages
    for schedule, pause, more in (("zb-v", 0, 0), ("dualpipe-v", 1, 1)):
        orders = orders_of(schedule, stages, count)
        ticks, links = [[1] * len(order) for order in orders], [(0, 0)] * stages
        pp = schedule_of(orders, ticks, links, "ahead", count, in_v=True)
        times = simulate_schedule(pp).stages
        assert [own.start[0] for own in times] == list(range(stages))
        idle = [own.end[-1] - own.start[0] - 6 * count for own in times]
        assert idle == [pause * (stages - 1 - stage) for stage in range(stages)]
        for order in orders:
            level = [0]
            for slot in order:
                level.append(level[-1] + {FORWARD: 1, INPUT: 0, WEIGHT: -1}[slot.work])
            assert max(level) == 2 * stages + more


def test_a_tied_table_is_on_the_first_stage_alone() -> None:
    gpt, plan = replace(find_model("tiny-30k"), layers=4), "pp=2,vpp=2,schedule=zb-v"
    first, last = (lower(gpt, parse_plan(f"{plan},batch=4,mbs=1"), s) for s in range(2))
    assert gpt.tied
    assert "embed.w" in first.layouts
    assert "embed.w" not in last.layouts
    assert not [op for program in (first, last) for op in program.ops if "ends" in op.axes]
    own = [[b for b in each.buffers.values() if b.role == "parameters"] for each in (first, last)]
    assert sum(buffer.elements for buffers in own for buffer in buffers) == gpt.parameters
    assert [sorted({b.part.layer for b in buffers}) for buffers in own] == [[-1, 0, 3], [1, 2]]


@pytest.mark.parametrize(
    ("text", "kind", "named"),
    [
        ("pp=2,schedule=zb-v", PlanError, ("1", "vpp=2")),
        ("pp=2,vpp=3,schedule=zb-v", PlanError, ("1", "vpp=2")),
        ("vpp=2,schedule=dualpipe-v", PlanError, ("1", "vpp=2")),
        ("pp=2,vpp=2,schedule=zb-h1", PlanError, ("schedule=1f1b",)),
        ("pp=4,vpp=2,schedule=dualpipe-v", PlanCannotRunError, ("2*pp=8",)),
        ("pp=4,vpp=2,schedule=dualpipe", PlanError, ("vpp=1",)),
    ],
)
def test_what_a_v_cannot_have_is_refused_by_name(
    text: str, kind: type[Exception], named: tuple[str, ...]
) -> None:
    with pytest.raises(kind, check=names(*named)):
        parse_plan(f"{text},batch=4,mbs=1")
