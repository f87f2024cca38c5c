"""What a search says where no plan fits: how many may, by how much all miss, and what may be
enough."""

from __future__ import annotations

import json

import pytest

from simulator.search import Progress
from tests.messages import assert_names
from tests.simgpt.face import simgpt

SEARCH = "search llama-3.1-8b -m 1x8xH100 -n 8 --batch 8 --workers 1"
FEW = "pp=1,mbs=1,order=tp-dp-pp"  # and so quickly bounded


def told(words: str) -> str:
    said = simgpt(*f"{SEARCH} {words}".split())
    assert said.status == 3
    assert said.err == ""
    return " ".join(said.out.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "is_named"),
    [
        (f"--model-set sequence=256Ki --plan tp=1,{FEW}", True),
        (f"--model-set sequence=256Ki --plan tp=1,{FEW} --stack gpt-neox", False),  # no context
        (f"--model-set sequence=256Ki --plan tp=1,cp=1,{FEW}", False),
        (f"--model-set sequence=1Mi --plan tp=8,{FEW} --split-sequences", False),
        (f"--model-set sequence=1Mi --plan tp=8,{FEW}", False),  # for which 8 devices are too few
        (f"--model-set sequence=4096 --model-set layers=400 --plan tp=1,zero=0,{FEW}", False),
    ],
)
def test_split_sequences_is_named_where_it_was_not_searched_and_may_help(
    words: str, is_named: bool
) -> None:
    stack = "" if "--stack" in words else " --stack megatron-core"
    said = told(words + stack)
    assert_names(said, "GiB")  # by which all miss
    assert ("--split-sequences" in said) == is_named


def test_a_plan_with_split_sequences_is_found_where_it_is_named() -> None:
    words = f"{SEARCH} --model-set sequence=256Ki --plan tp=1,{FEW} --stack megatron-core"
    fixed = words.replace("tp=1", "tp=1,recompute=full,zero=3,context_kind=ulysses")
    found = simgpt(*fixed.split(), "--split-sequences", "--top", "1", "--json")
    assert json.loads(found.out)["plans"][0]["plan"]["cp"] == 8


def test_no_plan_is_said_to_fit_where_none_does() -> None:
    """Each has room by the first bound on memory, and none by a closer one."""
    words = f"--model-set sequence=1Mi --plan tp=8,{FEW} --stack megatron-core"
    told(words)
    answer = json.loads(simgpt(*f"{SEARCH} {words}".split(), "--json").out)
    assert (answer["plans"], answer["optimal"], answer["plans_fitting"]) == ([], True, 0)
    assert answer["plans_considered"] > 0


@pytest.mark.parametrize(
    ("is_optimal", "unpredicted", "may_fit"), [(False, 2, 7), (True, 2, 2), (True, 0, 0)]
)
def test_what_may_fit_is_what_is_not_known_to_miss(
    is_optimal: bool, unpredicted: int, may_fit: int
) -> None:
    state = Progress(9, 7, 5, 1.0, 1.0, (), is_optimal, unpredicted)
    assert state.may_fit == may_fit


def test_recomputation_that_is_also_tried_is_no_error_where_nothing_fits() -> None:
    words = f"--model-set sequence=256Ki --plan tp=1,y=1,z=1,{FEW} --also recompute=layernorm"
    assert_names(told(words), "GiB")
