"""Batches that devices divide badly: what is proposed in their place, and where it pays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import cast

import pytest

from simgpt.interrupts import Patience
from simgpt.near_batches import near_batches, worth_a_search
from simgpt.search_runner import Searches
from simulator.predict import Prediction
from simulator.search import SearchProblem
from simulator.search.progress import Progress
from simulator.uncertainty.anchors import QuestionAnchors
from tests.messages import assert_names
from tests.simgpt.face import simgpt
from topologies.machine_files import load_machine
from workload.gpt import find_model

MODEL = ("llama-3.1-8b", "-m", "8x8xH100,8xNDR", "-n", "64", "--model-set", "sequence=4096")
SEARCH = (
    *("search", "tiny-1m", "-m", "perlmutter", "-n", "8", "--plan"),
    "y=1,z=1,pp=1,recompute=full,zero=1,mbs=1,overlap=all,order=tp-dp-pp",
    *("--workers", "1", "--top", "1", "--json"),
)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["predict", "search"])
def test_tokens_that_are_no_whole_sequences_get_counts_that_the_devices_divide(
    command: str,
) -> None:
    """8e6 tokens are 1953.1 sequences of 4,096; 2,048 and 1,920 are multiples of 64 within 5 %."""
    said = simgpt(command, *MODEL, "--batch-tokens", "8M")
    assert said.status == 2
    assert_names(said.sentence, "8Mi", "2,048", "7864320", "1,920")
    for given in ("8Mi", "7864320"):
        assert (
            simgpt(
                "predict", *MODEL, "--batch-tokens", given, "--plan", "dp=rest,mbs=2,zero=2"
            ).status
            == 0
        )


@pytest.mark.parametrize("devices", [1, 3, 8, 24, 64, 1000])
@pytest.mark.parametrize("batch", [20.5, 97, 1000, 1953.125, 10007])
def test_near_batches_are_near_and_shared_better(batch: float, devices: int) -> None:
    for near in near_batches(batch, devices):
        assert abs(near / batch - 1) <= 0.05
    for near in worth_a_search(int(batch), devices):
        assert near != int(batch)
        assert abs(near / int(batch) - 1) <= 0.05


def test_a_batch_that_the_devices_divide_costs_no_further_search() -> None:
    assert [worth_a_search(batch, 64) for batch in (64, 1920, 1984, 2048)] == [[], [], [], []]
    assert len(worth_a_search(1953, 64)) == 2


def test_a_search_names_near_batches_whose_plans_are_faster_per_token() -> None:
    """61 sequences on 8 devices leave no data parallelism; 64 leave all of it, and 60 some."""
    odd = json.loads(simgpt(*SEARCH, "--batch", "61").out)
    near = json.loads(simgpt(*SEARCH, "--batch", "64").out)
    per_sequence = [found["plans"][0]["step_s"] / n for found, n in ((odd, 61), (near, 64))]
    assert per_sequence[0] > 1.1 * per_sequence[1]
    named = {each["batch"]: each for each in odd["faster_batches"]}
    assert named[64]["batch_tokens"] == 64 * 128
    assert "faster_batches" not in near


@pytest.mark.parametrize(("share", "named"), [(0.89, [2048, 1920]), (0.93, [])])
def test_only_a_near_batch_that_is_faster_by_more_than_a_tenth_is_named(
    share: float, named: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,953 sequences in 1,953 s; of near batches each sequence takes a share of a second."""
    machine = load_machine("8x8xH100,8xNDR")
    waits = Patience()
    searches = Searches(machine, "scheduler", waits, "time", 1, 1, False, 0.0, QuestionAnchors(()))
    problem = SearchProblem(find_model("llama-3.1-8b"), 64, 1953)
    plan = cast(Prediction, object())

    def states(_: Searches, asked: SearchProblem) -> Iterator[Progress]:
        seconds = share * asked.batch
        return iter([Progress(1, 1, 1, seconds, seconds, (plan,), True)])

    monkeypatch.setattr(Searches, "_states", states)
    best = Progress(1, 1, 1, 1953.0, 1953.0, (plan,), True)
    assert searches.faster_batches(problem, best) == named
