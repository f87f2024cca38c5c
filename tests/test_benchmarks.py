"""Every benchmark runs: at its smallest its rows have all columns, and times above zero."""

from __future__ import annotations

import csv
import gc
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import simgpt
from benchmarks import questions, search_problems
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from tests.test_house import ROOT

MODULES = sorted(
    path.stem for path in (ROOT / "benchmarks").glob("*.py") if not path.stem.startswith("_")
)


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Benchmarks of the executor compute on one thread, which what follows must not.

    They collect garbage before each time that they take, but not that of other tests.
    """
    gc.freeze()
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def rows_of(module: str, folder: Path, *words: str) -> list[dict[str, Any]]:
    file = folder / "rows.json"
    ended = CliRunner().invoke(
        import_module(f"benchmarks.{module}").main,
        ["--smallest", "--json", str(file), *words],
        catch_exceptions=False,
    )
    assert ended.exit_code == 0, ended.output
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return found


def times_of(row: dict[str, Any]) -> list[float]:
    units = ("_s", "_us", "seconds")
    return [row[key] for key in row if key.endswith(units) and row[key] is not None]


@pytest.mark.parametrize("module", MODULES)
def test_at_its_smallest_a_benchmark_times_what_it_says(module: str, tmp_path: Path) -> None:
    repeats = ("--repeats", "1") if module == "questions" else ()
    rows = rows_of(module, tmp_path, *repeats)
    assert rows
    for row in rows:
        assert tuple(row) == import_module(f"benchmarks.{module}").COLUMNS
        assert times_of(row)
        assert min(times_of(row)) > 0
        assert not row.get("lacks")


@pytest.mark.parametrize("module", MODULES)
def test_a_benchmark_says_what_it_can_be_asked(module: str) -> None:
    ended = CliRunner().invoke(import_module(f"benchmarks.{module}").main, ["--help"])
    assert ended.exit_code == 0
    assert {"--smallest", "--json"} <= set(ended.output.split())


def test_the_questions_are_those_of_the_record() -> None:
    # 3 * 3 * 2 * 2 plans of the pipeline, 3 * 3 * 3 * 2 of experts, 4 * 3 * 3 and 2 * 3 * 2.
    plans = {name: step.plans for name, step in questions.SWEEPS.items()}
    assert plans == {"pipeline": 36, "experts": 54, "fsdp": 36, "deepseek": 12}
    assert list(questions.STEPS) == list("abcdef")
    assert {step.plans for step in questions.STEPS.values()} == {1}


@pytest.mark.parametrize("step", questions.STEPS.values(), ids=questions.STEPS)
def test_users_may_spell_the_questions_so(step: questions.Step) -> None:
    asked: list[tuple[Any, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simgpt, "predict", lambda *names, **options: asked.append((names, options)))
        step.ask(batches=2)
    ((model, machine, plan), options), *_ = asked
    assert [model, machine, plan] == [step.words()[1], step.words()[3], step.plan]
    assert options["batch"] == 2 * step.batch


@pytest.mark.slow
def test_packages_that_lack_a_question_have_a_row_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def why(*_: object, **__: object) -> None:
        raise TypeError("unexpected keyword 'stack'\nand more")

    monkeypatch.setattr(simgpt, "why", why, raising=False)
    chosen = ("--only", "why", "--only", "search", "--repeats", "1")
    why_row, search_row = rows_of("questions", tmp_path, *chosen)
    assert why_row["lacks"] == "TypeError: unexpected keyword 'stack'"
    assert why_row["median_s"] is None
    assert search_row["median_s"] > 0


def test_every_drawn_problem_has_a_plan_that_its_stack_runs() -> None:
    with search_problems.PROBLEMS.open(encoding="utf-8") as file:
        problems = list(csv.DictReader(file))
    assert len(problems) == 40
    for problem in problems:
        gpt, stack = search_problems.model_of(problem), load_stack(problem["stack"])
        devices, batch = int(problem["devices"]), int(problem["batch"])
        job = job_of(gpt, problem["plan"], stack, devices=devices, batch=batch)
        assert job.plan.grid.ranks == devices
        assert search_problems.machine_of(problem).devices >= devices


def test_a_command_that_fails_is_no_time() -> None:
    with pytest.raises(RuntimeError):
        questions.run_command(["predict", "nosuch"])


def test_a_word_that_names_no_question_is_refused() -> None:
    ended = CliRunner().invoke(questions.main, ["--only", "predict/z"])
    assert ended.exit_code == 2


def test_repeats_end_by_their_number_and_after_one_that_took_too_long() -> None:
    assert questions.Repeats(3, 1e9).of(lambda: [1.0, 2.0]) == [[1.0] * 3, [2.0] * 3]
    assert questions.Repeats(3, 0.0).of(lambda: [1.0]) == [[1.0]]
