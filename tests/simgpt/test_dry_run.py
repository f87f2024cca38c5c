"""`simgpt run --dry`: what it answers, and what it refuses."""

from __future__ import annotations

import json

import pytest

from tests.messages import assert_names
from tests.simgpt.face import simgpt

WORDS = ("run", "tiny-30k", "--batch", "8", "--dry")


@pytest.mark.parametrize(
    ("data", "rank"), [(512, 1234), pytest.param(4096, 12345, marks=pytest.mark.slow)]
)
def test_any_rank_of_many_is_played_and_agrees(data: int, rank: int) -> None:
    """The second half of the ranks is the pipeline's second stage."""
    plan = ("--batch", f"{data}", "--plan", f"x=2,pipe=2,data={data}", "--rank", f"{rank}")
    said = simgpt(*WORDS[:2], "--dry", *plan, "--json")
    assert said.status == 0, said.err
    record = json.loads(said.out)
    assert record["agrees"]
    assert (record["ranks"], record["rank"], record["stage"]) == (4 * data, rank, 1)
    assert record["difference"] == record["stages"]["hang"] == ""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--steps", "3"), "--steps --dry"),
        (("--device", "cuda"), "--device --dry"),
        (("--rank", "1"), "--rank 1 0"),
    ],
)
def test_what_has_no_effect_is_refused_by_name(words: tuple[str, ...], named: str) -> None:
    said = simgpt(*WORDS, *words)
    assert (said.status, said.out) == (2, "")
    assert_names(said.err, *named.split())


def test_a_rank_is_chosen_for_a_dry_run_alone() -> None:
    said = simgpt(*WORDS[:-1], "--rank", "0")
    assert said.status == 2
    assert_names(said.err, "--rank", "--dry")


def test_a_difference_is_said_after_the_answer_with_a_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("executor.buffer_table.BufferTable.free", lambda self, slot: None)
    said = simgpt(*WORDS)
    assert said.status == 6
    difference = json.loads(simgpt(*WORDS, "--json").out)["difference"]
    assert difference.startswith("m0.")
    assert said.out.rstrip().endswith(difference)
    assert_names(said.err, "0", difference)
