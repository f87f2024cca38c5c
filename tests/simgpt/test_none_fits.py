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


def test_long_sequences_are_split_where_whole_ones_do_not_fit() -> None:
    words = f"{SEARCH} --model-set sequence=256Ki --plan tp=1,{FEW} --stack megatron-core"
    fixed = words.replace("tp=1", "tp=1,recompute=full,zero=3,context_kind=ulysses")
    found = simgpt(*fixed.split(), "--top", "1", "--json")
    assert json.loads(found.out)["plans"][0]["plan"]["cp"] == 8
    assert_names(told(f"--model-set sequence=256Ki --plan tp=1,cp=1,{FEW}"), "GiB")


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
