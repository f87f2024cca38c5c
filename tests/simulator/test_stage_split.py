"""Stacks that spread layers over stages by what they cost."""

from __future__ import annotations

import pytest

from simulator.search import SearchProblem
from simulator.search.space import Order, space_of
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from workload.gpt import GPT
from workload.grid import USUAL

# A layer costs 4 h^2 + 3 h f = 67.1M, the classifier h V = 268.4M, that is four layers: 20 layers'
# cost on 8 stages are 2.5 each, so that stages end with the 3rd, 6th, 8th, 11th, 13th and 16th.
GPT_1B = GPT.of(name="1B", sequence=4096, layers=16, hidden=2048, heads=32, ffn=8192, vocab=131072)
NANOTRON = load_stack("nanotron")


@pytest.mark.parametrize("stack", ["nanotron", "nanotron-zero1"])
def test_nanotron_deals_layers_by_cost(stack: str) -> None:
    found = job_of(GPT_1B, "pp=8,mbs=1", load_stack(stack), devices=8, batch=8).plan
    assert found.pipeline.stage_layers == (3, 3, 2, 3, 2, 3, 0, 0)


def test_other_stacks_and_users_deal_them_as_they_say() -> None:
    assert not job_of(
        GPT_1B, "pp=8", load_stack("nemo"), devices=8, batch=8
    ).plan.pipeline.stage_layers
    even = "2+2+2+2+2+2+2+2"
    found = job_of(GPT_1B, f"pp=8,stage_layers={even}", NANOTRON, devices=8, batch=8).plan
    assert found.pipeline.stage_layers == (2,) * 8
    assert not job_of(GPT_1B, "dp=8", NANOTRON, devices=8, batch=8).plan.pipeline.stage_layers


def test_an_answer_of_a_search_is_the_plan_that_its_text_stands_for() -> None:
    problem = SearchProblem(GPT_1B, devices=8, batch=8, fixed={"pp": 8}, stack=NANOTRON)
    plan = space_of(problem).plan(0, Order(ranks=USUAL, schedule="1f1b", vpp=1, overlap=("dp",)))
    assert plan.pp == 8
    assert job_of(GPT_1B, NANOTRON.text(plan), NANOTRON, batch=8).plan == plan
