"""Pipelines against a plain single-process GPT: same losses, same weights, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.examples import one_in
from tests.executor.test_parity import BATCH, TINY, check
from workload.gpt import find_model
from workload.overlaps import OVERLAPS
from workload.pipeline.schedule import STRAIGHT
from workload.plan import Plan

DEEP = replace(TINY, layers=8)


def plan_of(micro_batches: int = 4, *, overlap: tuple[str, ...] = OVERLAPS, **keys: object) -> Plan:
    cells = int(str(keys.get("z", 1))) * int(str(keys.get("dp", 1)))
    return Plan.of(
        batch=BATCH,
        mbs=BATCH // (cells * micro_batches),
        overlap=overlap,
        **{"precision": "fp64", **keys},
    )


@pytest.mark.distributed
@pytest.mark.parametrize("schedule", STRAIGHT)
def test_every_schedule_trains_as_the_plain_model_does(schedule: str) -> None:
    """On two stages; on four in the slow set below."""
    check(2, TINY, [plan_of(4, pp=2, schedule=schedule)])


def with_schedule(schedule: str) -> list[Plan]:
    return [
        plan_of(4, pp=4, schedule=schedule),
        plan_of(2, pp=4, schedule=schedule, recompute="full", overlap=()),
        plan_of(4, pp=2, z=2, schedule=schedule),
        plan_of(4, pp=2, dp=2, schedule=schedule),
    ]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("schedule", STRAIGHT)
def test_every_schedule_does_so_with_every_other_split(schedule: str) -> None:
    check(4, DEEP, with_schedule(schedule))


@pytest.mark.distributed
def test_chunks_in_turns_train_as_the_plain_model_does() -> None:
    check(2, replace(DEEP, layers=4), [plan_of(4, pp=2, vpp=2)])


@pytest.mark.slow
@pytest.mark.distributed
def test_chunks_in_turns_do_so_with_every_other_split() -> None:
    check(4, DEEP, IN_TURNS)


IN_TURNS = [
    plan_of(4, pp=2, vpp=4, dp=2),
    plan_of(4, pp=4, vpp=2, overlap=()),
    plan_of(4, pp=2, vpp=2, y=2, overlap=("oar", "dp")),
    plan_of(2, pp=2, vpp=2, tp=2, recompute="full"),
]


def in_v(schedule: str, micro_batches: int, **keys: Any) -> Plan:
    return plan_of(micro_batches, vpp=2, schedule=schedule, **keys)


@pytest.mark.distributed
@pytest.mark.parametrize("schedule", one_in(2, ["zb-v", "dualpipe-v"]))
def test_schedules_in_a_v_train_as_the_plain_model_does(schedule: str) -> None:
    """On two stages, of which a second chunk turns back; on four in the slow set below."""
    uneven = in_v(schedule, 4, pp=2, stage_layers=(1, 0, 2, 1))
    check(2, replace(DEEP, layers=4), [uneven])


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v"])
def test_schedules_in_a_v_do_so_with_every_other_split(schedule: str) -> None:
    check(2, DEEP, [in_v(schedule, 8, pp=2), in_v(schedule, 4, pp=2, stage_layers=(1, 0, 4, 3))])
    plans = [
        in_v(schedule, 8, pp=4),
        in_v(schedule, 8, pp=4, recompute="full", overlap=()),
        in_v(schedule, 8, pp=2, z=2, zero=1),
        in_v(schedule, 4, pp=2, dp=2),
        in_v(schedule, 4, pp=2, tp=2, sp=True),
    ]
    check(4, DEEP, plans)
    check(4, replace(find_model("tiny-llama-40k"), layers=8), plans[:1])


@pytest.mark.slow
@pytest.mark.distributed
def test_zb_v_trains_so_with_fewer_micro_batches_than_its_warm_up_takes() -> None:
    check(4, DEEP, [in_v("zb-v", count, pp=4) for count in (1, 2, 4)])


@pytest.mark.distributed
def test_uneven_stages_train_as_the_plain_model_does() -> None:
    """With the embedding alone on the first of three."""
    check(3, TINY, [plan_of(4, pp=3, stage_layers=(0, 1, 1))])


@pytest.mark.slow
@pytest.mark.distributed
def test_uneven_stages_do_so_in_turns_and_with_z() -> None:
    plans = [
        plan_of(4, pp=4, stage_layers=(0, 2, 3, 1)),
        plan_of(4, pp=2, vpp=2, z=2, stage_layers=(1, 2, 2, 1)),
        plan_of(4, pp=4, ends_as_layers=True),
    ]
    check(4, replace(DEEP, layers=6), plans)


@pytest.mark.distributed
def test_an_untied_llama_trains_as_the_plain_model_does() -> None:
    check(4, find_model("tiny-llama-40k"), [plan_of(4, pp=2, tp=2)])


ON_EIGHT = [
    plan_of(2, pp=2, vpp=2, z=2, dp=2),
    plan_of(4, pp=2, tp=2, z=2, schedule="zb-h1"),
    plan_of(4, pp=8),
]


@pytest.mark.slow
@pytest.mark.distributed
def test_eight_ranks_train_as_the_plain_model_does() -> None:
    check(8, DEEP, ON_EIGHT)
