"""The space of plans: every legal one, and each once."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations, product
from typing import Any

import pytest

from simulator.search.baselines import every_plan
from simulator.search.families import family_of, name_of
from simulator.search.problem import SearchProblem, divisors
from simulator.search.space import Order, space_of
from tests.messages import names
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import GPT
from workload.grid import AXES, USUAL
from workload.lowering import check, lower
from workload.overlaps import OVERLAPS
from workload.pipeline.schedule import STRAIGHT
from workload.plan import Plan
from workload.recomputation.parts import RECOMPUTES

GPT_4 = GPT.of(name="four", layers=4, hidden=64, heads=4, ffn=256, sequence=64, vocab=100)


def all_texts(gpt: GPT, devices: int, batch: int) -> set[Plan]:
    """Every combination of fields that `Plan` and the lowering admit, by trying all of them; but
    chunks of stages only with whole turns of micro-batches, as a search tries them."""
    found = set()
    sizes = divisors(devices)
    for x, y, z, pp in product(sizes, repeat=4):
        if devices % (x * y * z * pp):
            continue
        data = devices // (x * y * z * pp)
        for micro, zero, recompute, rows, schedule, chunks in product(
            divisors(batch), range(4), RECOMPUTES, (False, True), STRAIGHT, (1, 2, 4)
        ):
            try:
                plan = Plan.of(
                    tp=x, y=y, z=z, dp=data, pp=pp, batch=batch, mbs=micro, zero=zero,
                    recompute=recompute, sp=rows, schedule=schedule,
                    vpp=chunks,
                )  # fmt: skip
                check(gpt, plan)
            except (PlanError, PlanCannotRunError):
                continue
            if chunks == 1 or plan.micro_batches % pp == 0:
                found.add(plan)
    return found


def is_text_of_another(plan: Plan) -> bool:
    """Whether a plan says in other words what a plan with defaults says."""
    return (
        (plan.dp == 1 and plan.zero > 0)
        or (plan.tp == 1 and plan.sp)
        or (plan.pp == 1 and plan.pipeline.schedule != "1f1b")
    )


def test_latent_attention_has_every_legal_plan_but_those_over_y() -> None:
    latent = GPT_4.changed(positions="rope", biases=False, kv_rank=8, rope_width=4)
    space = space_of(SearchProblem(latent, 4, 4, {"overlap": OVERLAPS, "order": USUAL}))
    plans = {plan for plan in all_texts(latent, 4, 4) if not is_text_of_another(plan)}
    assert set(every_plan(space)) == plans
    assert not space.columns["y"].tolist().count(2)
    with pytest.raises(PlanCannotRunError, check=names("1")):
        space_of(SearchProblem(latent, 4, 4, {"y": 2}))


@pytest.mark.parametrize(
    ("devices", "batch"),
    [
        (1, 2),
        (6, 6),
        pytest.param(4, 4, marks=pytest.mark.slow),
        pytest.param(8, 12, marks=pytest.mark.slow),
    ],
)
def test_a_space_has_every_legal_plan_once(devices: int, batch: int) -> None:
    problem = SearchProblem(GPT_4, devices, batch, {"overlap": OVERLAPS, "order": USUAL})
    plans = list(every_plan(space_of(problem)))
    assert len(set(plans)) == len(plans) == space_of(problem).plans
    wanted = {plan for plan in all_texts(GPT_4, devices, batch) if not is_text_of_another(plan)}
    assert set(plans) == wanted


@pytest.mark.slow
def test_overlaps_that_make_the_same_program_count_once() -> None:
    def program(plan: Plan) -> tuple[object, ...]:
        stages = range(plan.pp)
        return tuple(tuple(map(repr, lower(GPT_4, plan, stage).ops)) for stage in stages)

    fixed = {"recompute": "none", "mbs": 1, "schedule": "1f1b", "vpp": 1}
    fixed |= {"order": USUAL}
    space = space_of(SearchProblem(GPT_4, 4, 8, fixed))
    plans = list(every_plan(space))
    assert len(plans) == space.plans
    shapes = {str(plan).partition(",overlap")[0] for plan in plans}
    every = [c for n in range(len(OVERLAPS) + 1) for c in combinations(OVERLAPS, n)]
    for shape in sorted(shapes)[::7]:
        own = [plan for plan in plans if str(plan).partition(",overlap")[0] == shape]
        others = [Plan.of(**{**own[0].as_dict(), "stage_layers": (), "overlap": o}) for o in every]
        assert len({program(plan) for plan in own}) == len(own)
        assert {program(plan) for plan in own} == {program(plan) for plan in others}


@pytest.mark.parametrize("devices", [8, pytest.param(16, marks=pytest.mark.slow)])
def test_rank_orders_that_give_every_axis_the_same_groups_count_once(devices: int) -> None:
    def groups(plan: Plan) -> tuple[object, ...]:
        wide = [axis for axis in AXES if plan.value(axis) > 1]
        return tuple(plan.grid.groups(axis).tobytes() for axis in wide)

    fixed = {"recompute": "none", "mbs": 1, "overlap": (), "zero": 0, "vpp": 1}
    fixed |= {"schedule": "1f1b", "sp": False}
    space = space_of(SearchProblem(GPT_4, devices, devices, fixed))
    plans = list(every_plan(space))
    assert len(set(plans)) == len(plans) == space.plans
    for grid in sorted({tuple(plan.grid.sizes.items()) for plan in plans}, key=str):
        own = [plan for plan in plans if tuple(plan.grid.sizes.items()) == grid]
        wide, ones = (
            [a for a in AXES if (getattr(own[0], a) > 1) is large] for large in (True, False)
        )
        every = ["-".join([*axes, *ones]) for axes in permutations(wide)]
        texts = {groups(replace(own[0], order=order)) for order in every}
        assert len({groups(plan) for plan in own}) == len(own)
        assert {groups(plan) for plan in own} == texts


def test_fixed_fields_stay_as_they_are() -> None:
    fixed = {"z": 2, "zero": 1, "gradients": "bf16", "shard": 2}
    for plan in every_plan(space_of(SearchProblem(GPT_4, 8, 8, fixed))):
        assert (plan.z, plan.zero, plan.training.gradients, plan.shard) == (2, 1, "bf16", 2)


def test_no_plan_is_said_with_what_must_divide_what() -> None:
    with pytest.raises(PlanCannotRunError, check=names("four", "7")):
        space_of(SearchProblem(GPT_4, 7, 4))


@pytest.mark.parametrize(
    ("fixed", "named"),
    [
        ({"tp": 3}, ("tp=3", "1", "2", "4")),
        ({"pp": 2, "mbs": 3}, ("mbs=3", "1", "2", "4")),
        ({"vpp": 7}, ("vpp=7",)),
        ({"tp": 3, "z": 5}, ("four", "z*dp")),
    ],
)
def test_a_fixed_field_that_no_plan_can_have_is_named(
    fixed: dict[str, object], named: tuple[str, ...]
) -> None:
    with pytest.raises(PlanCannotRunError, check=names(*named)):
        space_of(SearchProblem(GPT_4, 8, 8, fixed))


def test_every_shape_has_the_family_of_its_plan() -> None:
    space = space_of(SearchProblem(GPT_4, 8, 8, {"overlap": OVERLAPS, "order": USUAL}))
    found = {
        name_of(int(space.families[at])): family_of(
            space.plan(at, Order("1f1b", 1, OVERLAPS, USUAL))
        )
        for at in range(len(space))
    }
    assert {*found} >= {"dp", "FSDP", "tp", "pp", "tp+pp", "3D", "3D+pp"}
    assert all(code == own for code, own in found.items())


@pytest.mark.parametrize(
    ("heads", "kv_heads", "xs"), [(8, 4, {1, 2}), (4, 0, {1, 2}), (8, 0, {1, 2, 4})]
)
@pytest.mark.parametrize("context", [{"cp": 2, "context_kind": "ulysses"}])
def test_ranks_of_x_leave_each_neighbour_on_context_whole_heads(
    heads: int, kv_heads: int, xs: set[int], context: dict[str, Any]
) -> None:
    """Two neighbours trade heads, so that x splits half of the heads, and of keys' heads."""
    gpt = GPT_4.changed(heads=heads, kv_heads=kv_heads)
    fixed = {**context, "y": 1, "z": 1, "pp": 1, "zero": 0, "recompute": "none", "mbs": 1}
    space = space_of(SearchProblem(gpt, 16, 16, fixed))
    assert set(space.columns["tp"].tolist()) == xs
