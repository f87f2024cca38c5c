"""`simgpt run --dry`: what it answers, and what it refuses."""

from __future__ import annotations

import json

import pytest

from executor.dry.rank import PlayedRank
from executor.dry.stages import PlayedStages
from simgpt.running.dry_run import _text
from tests.messages import assert_names
from tests.simgpt.face import simgpt
from workload.gpt import find_model
from workload.plan_text import parse_plan

WORDS = ("run", "tiny-30k", "--batch", "8", "--dry")


@pytest.mark.parametrize(
    ("data", "rank"), [(512, 1234), pytest.param(4096, 12345, marks=pytest.mark.slow)]
)
def test_any_rank_of_many_is_played_and_agrees(data: int, rank: int) -> None:
    """The second half of the ranks is the pipeline's second stage."""
    plan = ("--batch", f"{data}", "--plan", f"tp=2,pp=2,dp={data}", "--rank", f"{rank}")
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


def test_the_table_has_all_that_was_played_and_gigabytes_of_a_thousand_million() -> None:
    played = PlayedRank(
        rank=3,
        stage=1,
        ops=1_900,
        kernels=57,
        groups=4,
        calls=1_210,
        carried={"dp": 3_000_000_000, "tp": 1_510_000_000},
        counted_bytes=21_000_000_001,
        program_bytes=22_000_000_002,
        most_bytes=23_000_000_003,
        scratch_bytes=0,
        difference="",
        seconds=2.5,
    )
    stages = PlayedStages(stages=2, calls=8_001, hang="", loads_eagerly=False, seconds=0.04)
    plan = parse_plan("pp=2,dp=2", batch=8)
    rows = _text(find_model("tiny-30k"), plan, played, stages).splitlines()
    values = ["1,900", "57", "1,210", "4.51 GB", *(f"2{n},000,000,00{n} bytes" for n in (1, 2, 3))]
    values += ["2.50 s", "8,001", "40.0 ms"]
    at = [next(i for i, row in enumerate(rows) if value in row) for value in values]
    assert at == [*range(at[0], at[0] + len(values))]
