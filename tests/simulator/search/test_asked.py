"""Parts of layers to recompute and traded heads, which a search tries where they are asked for:
bounds hold, and answers are the best."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import reject
from hypothesis import strategies as st

from simulator.search.baselines import every_plan
from simulator.search.problem import SearchProblem
from simulator.search.space import Space, space_of, spaces_of
from simulator.stacks import load_stack
from tests.examples import few_and_many
from tests.messages import names
from tests.simulator.search.drawn import DRAWN, MACHINES, mixtures, models
from tests.simulator.search.test_bounds import holds_for_one_plan
from tests.simulator.search.test_branch_and_bound import SMALL, same_answer
from tests.simulator.search.test_choices import FEW, TINY, without
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import GPT
from workload.recomputation.parts import ACTIVATION, CORE, EXPERTS, MLP, NORMS, SHARED, UP

OF_ALL = (CORE, NORMS, MLP)


def parts_of(gpt: GPT) -> tuple[str, ...]:
    """The parts of a drawn model."""
    found = [*OF_ALL[:2], *([UP] if gpt.kv_rank else []), *([SHARED] if gpt.shared_ffn else [])]
    dense = not gpt.experts or gpt.dense_layers or gpt.expert_every > 1
    return (*found, *([MLP] if dense else []), *([EXPERTS, ACTIVATION] if gpt.experts else []))


@st.composite
def spaces_with_parts(draw: st.DrawFn) -> Space:
    """The plans of a drawn model that recompute parts of its layers, of up to two at random."""
    gpt = draw(st.one_of(models(), mixtures()))
    parts = draw(st.sets(st.sampled_from(sorted(parts_of(gpt))), min_size=1, max_size=2))
    devices, batch = draw(st.sampled_from([4, 8, 12, 32])), draw(st.sampled_from([8, 24, 64]))
    fixed: dict[str, Any] = draw(
        st.sampled_from([{}, {"pp": 2}, {"pp": 4}, {"attention": "unfused"}])
    )
    try:
        space = space_of(
            SearchProblem(gpt, devices, batch, fixed, also={"recompute": tuple(sorted(parts))})
        )
    except PlanCannotRunError:
        reject()
    named = space.problem.recomputations
    rows = [at for at, place in enumerate(space.columns["recompute"]) if 1 < place < len(named) - 1]
    return space.only(np.array(rows)) if rows else reject()


@few_and_many(
    2,
    400,
    DRAWN,
    space=spaces_with_parts(),
    name=st.sampled_from(sorted(MACHINES)),
    data=st.data(),
)
def test_no_plan_that_recomputes_parts_takes_less_than_its_bounds(
    space: Space, name: str, data: st.DataObject
) -> None:
    holds_for_one_plan(space, name, data)


@pytest.mark.slow
def test_a_search_over_parts_to_recompute_finds_what_trying_all_plans_finds() -> None:
    """In little memory plans that recompute nothing do not fit, and whole layers take longer."""
    fixed = without("recompute") | {"tp": 1, "ep": 8, "sp": False}
    problem = SearchProblem(TINY, 8, 64, fixed, also={"recompute": (NORMS, EXPERTS, SHARED)})
    plans = list(every_plan(space_of(problem)))
    assert [plan.recompute for plan in plans] == [
        "none", "selective", NORMS, EXPERTS, SHARED, f"{NORMS}+{EXPERTS}", f"{NORMS}+{SHARED}",
        "full",
    ]  # fmt: skip
    same_answer(problem, "perlmutter", top=5)


def test_a_stage_without_the_parts_that_run_again_has_its_bounds() -> None:
    """The MLP of the dense layer, which is on the first stage alone."""
    fixed = without("recompute", "pp") | {"tp": 1, "dp": 1, "pp": 2, "vpp": 1}
    fixed |= {"schedule": "1f1b"}
    same_answer(SearchProblem(TINY, 2, 4, fixed, also={"recompute": (MLP,)}), "perlmutter", top=3)


def test_parts_of_layers_can_be_kept_and_what_there_is_not_is_refused_by_name() -> None:
    kept = space_of(SearchProblem(TINY, 8, 16, FEW | {"recompute": "layernorm+moe_act"}))
    assert {plan.recompute for plan in every_plan(kept)} == {"layernorm+moe_act"}
    with pytest.raises(PlanError, check=names("recompute=full:2", "none", "selective", "full")):
        SearchProblem(TINY, 8, 16, {"recompute": "full:2"})
    with pytest.raises(PlanError, check=names("recompute=norms", "core_attn")):
        SearchProblem(TINY, 8, 16, also={"recompute": ("norms",)})
    with pytest.raises(PlanError, check=names("recompute=none")):
        SearchProblem(TINY, 8, 16, {"recompute": "none"}, also={"recompute": (NORMS,)})
    with pytest.raises(PlanCannotRunError, check=names("recompute=moe", "small")):
        SearchProblem(SMALL, 4, 8, also={"recompute": (EXPERTS,)})
    with pytest.raises(PlanCannotRunError, check=names("torchtitan")):
        SearchProblem(SMALL, 4, 8, also={"recompute": (NORMS,)}, stack=load_stack("torchtitan"))


@st.composite
def spaces_with_traded_heads(draw: st.DrawFn) -> Space:
    """The plans of a drawn model whose neighbours on context trade rows for heads."""
    gpt = draw(st.one_of(models(), mixtures()))
    heads, context = draw(st.sampled_from([(2, 4), (2, 4), (2, 8), (4, 8), (3, 6)]))
    fixed = {"cp": context, "context_heads": heads}
    devices, batch = context * draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([8, 24]))
    try:
        return space_of(SearchProblem(gpt, devices, batch, fixed))
    except PlanCannotRunError:
        reject()


@few_and_many(
    2,
    300,
    DRAWN,
    space=spaces_with_traded_heads(),
    name=st.sampled_from(sorted(MACHINES)),
    data=st.data(),
)
def test_no_plan_that_trades_heads_takes_less_than_its_bounds(
    space: Space, name: str, data: st.DataObject
) -> None:
    holds_for_one_plan(space, name, data)


@pytest.mark.slow
def test_a_search_over_traded_heads_finds_what_trying_all_plans_finds() -> None:
    """Experts over all of context, or over the neighbours that trade heads; both in any order."""
    fixed = without("order", "overlap") | {"tp": 1, "overlap": (), "dp": 1}
    also = {"context_heads": ("2",)}
    problem = SearchProblem(TINY, 4, 8, fixed, splits_sequences=True, also=also)
    plans = [plan for space in spaces_of(problem) for plan in every_plan(space)]
    kinds = {(plan.cp, plan.context_kind, plan.context_heads) for plan in plans}
    assert kinds == {
        (4, "ring", 1), (4, "all_gather", 1), (4, "ulysses", 1), (4, "ring", 2)
    }  # fmt: skip
    assert {plan.ep for plan in plans if plan.context_heads == 2} == {1, 2, 4}
    same_answer(problem, "perlmutter", top=4)
    kept = SearchProblem(SMALL, 4, 8, {"cp": 4, "context_heads": 2})
    assert {plan.context_heads for plan in every_plan(space_of(kept))} == {2}
    every = space_of(kept)
    runs = every.runs(np.arange(len(every)))["inner_cp"]  # of neighbours, in every bound
    assert set(runs.tolist()) == {2}
    with pytest.raises(PlanError, check=names("context_heads=2")):
        SearchProblem(TINY, 4, 8, also=also)
    with pytest.raises(PlanCannotRunError, check=names("context_heads=3", "heads=4")):
        SearchProblem(SMALL, 4, 8, splits_sequences=True, also={"context_heads": ("3",)})
    with pytest.raises(PlanCannotRunError, match="and overlap=a2a"):
        spaces_of(SearchProblem(TINY, 1, 8, also={"overlap": ("a2a",)}))
