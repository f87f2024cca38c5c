"""`simgpt memorise`: its table compared whole, its figure, what it refuses, and a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.memorising.spec import Memorisation
from simgpt import tables
from simgpt.commands.memorise import text
from tests.messages import assert_names
from tests.simgpt.face import assert_golden, simgpt
from validation.report.figures.memorisation import memorisation
from validation.report.figures.style import drawing
from workload.gpt import find_model

TINY = "layers=1,hidden=16,heads=2,sequence=64,vocab=256"


def record() -> dict[str, Any]:
    """Two runs of one model: without Goldfish three of four documents seen most are exact."""
    gpt = find_model("tiny-1m")
    usual = Memorisation(gpt=gpt, documents=4, passes=10, batch=4, lr=1e-3)
    fish = replace(usual, gpt=replace(gpt, goldfish_k=4))
    matched = {"0": [0, 1, 0, 2], "1": [3, 0, 1, 9], "4": [50, 49, 12, 7], "6": [50, 50, 50, 3]}
    none = {key: [0, 1, 2, 3] for key in matched}
    times = {"train_s": 12.0, "generate_s": 0.5}
    results = [
        {"matched": matched, "loss": 0.51, **times},
        {"matched": none, "loss": 0.62, **times},
    ]
    return text.record_of([usual, fish], results, seconds=25.0, load=0.5)


def test_a_document_is_exact_if_all_fifty_tokens_are_right() -> None:
    usual, fish = record()["runs"]
    assert usual["exact"] == {"0": 0.0, "1": 0.0, "4": 0.25, "6": 0.75}
    assert fish["exact"] == dict.fromkeys(("0", "1", "4", "6"), 0.0)
    assert (usual["goldfish_k"], usual["goldfish_h"]) == (0, None)
    assert (fish["goldfish_k"], fish["goldfish_h"]) == (4, 13)
    assert record()["steps"] == 110


def test_the_table_reads_as_its_golden_file() -> None:
    said = text.describe(record())
    assert max(map(len, said.splitlines())) <= tables.WIDTH
    assert_golden("memorise.txt", f"{said}\n")


def test_the_figure_has_a_line_for_each_model_under_each_loss(tmp_path: Path) -> None:
    with drawing():
        left, right = memorisation(record()).axes
    (line,) = left.lines
    assert np.asarray(line.get_ydata()).tolist() == [0, 0, 25, 75]
    assert np.asarray(line.get_xdata()).tolist() == [0, 1, 4, 6]
    assert len(right.lines) == 1
    path = tmp_path / "figure.svg"
    text.draw(record(), path)
    assert path.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("words", "named", "status"),
    [
        (["tiny-llama-1m"], "tiny-llama-1m norm=rmsnorm norm=layernorm", 2),
        (["--batch", "7"], "batch=7 704", 3),
        (["--ranks", "3", "--batch", "4"], "batch=4 3", 3),
        (["--goldfish-h", "128"], "goldfish_h=128 sequence=128", 2),
        (["--goldfish-k", "1"], "--goldfish-k 1", 2),
        (["--figure", "there.txt"], "there.txt .png .svg .pdf", 2),
        (["--documents", "0"], "--documents 0", 2),
        (["--documents", "1", "--figure", "there.txt"], "there.txt", 2),
        (["--data", "/nowhere/text"], "/nowhere/text", 2),
    ],
)
def test_what_it_cannot_do_is_said_in_one_sentence(
    words: list[str], named: str, status: int
) -> None:
    said = simgpt("memorise", *words)
    assert_names(said.err, *named.split())
    assert said.err.count("\n") == 1
    assert said.status == status


def test_a_context_without_goldfish_is_refused_by_run() -> None:
    said = simgpt("run", "tiny-30k", "--goldfish-h", "3", "--no-predict")
    assert_names(said.err, "--goldfish-h 3", "--goldfish-k")
    assert said.status == 2


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.usefixtures("forked_ranks")
def test_a_run_gives_rates_of_each_model_with_and_without_goldfish(tmp_path: Path) -> None:
    figure = tmp_path / "figure.png"
    command = ("memorise", TINY, "--documents", "2", "--passes", "2", "--ranks", "2")
    said = simgpt(*command, "--json", "--goldfish-k", "3", "--figure", str(figure))
    assert said.status == 0, said.err
    answer = json.loads(said.out)
    assert [run["goldfish_k"] for run in answer["runs"]] == [0, 3]
    assert all(len(counts) == 2 for run in answer["runs"] for counts in run["matched"].values())
    assert answer["runs"][0]["loss"] != answer["runs"][1]["loss"]
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.usefixtures("forked_ranks")
def test_run_trains_with_goldfish_loss() -> None:
    command = ("run", "tiny-30k", "--plan", "precision=fp32", "--steps", "2", "--no-predict")
    usual, fish = (
        json.loads(simgpt(*command, "--json", *words).out)["losses"]
        for words in ([], ["--goldfish-k", "2", "--goldfish-h", "3"])
    )
    assert usual != fish
