"""The commands of published runs: what a user types gives the very job that is validated."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from simgpt.commands.validate.published import command_line_of
from simgpt.question import Question
from simgpt.step import Sources, Step, step_of
from simulator.stacks.job import Job
from tests.messages import assert_names
from tests.simgpt.face import simgpt
from tests.validation.test_published import run
from validation.moe.comparison import has_experts
from validation.moe.rows import read_moe_runs
from validation.published.case import case_of
from validation.published.commands import NoCommandError, question_of_run
from validation.published.run_machine import machine_of
from validation.published.runs import PublishedRun, read_runs


def command_of(run: PublishedRun) -> list[str]:
    """The words of the command that predicts a run."""
    return ["simgpt", "predict", *Question.of(**question_of_run(run)).as_words()]


def question(words: list[str]) -> Step:
    """What `simgpt predict` makes of a command's words."""
    return step_of(Question.from_words(words[2:]), Sources(tells=False))


def unnamed(job: Job) -> tuple[object, ...]:
    gpt = replace(job.gpt, name="", source="")
    return gpt, job.plan, job.stack


@pytest.mark.slow
def test_every_run_with_a_plan_is_a_command_that_asks_for_the_validated_job() -> None:
    """A prediction follows from model, plan, stack, machine and placement, which are compared."""
    assert asked_alike(read_runs()) >= 1100


@pytest.mark.slow
def test_so_is_every_run_of_a_model_with_experts() -> None:
    assert asked_alike([each for each in read_moe_runs() if has_experts(each)]) >= 308


@pytest.mark.slow
def test_runs_of_models_with_experts_have_their_commands_printed() -> None:
    said = simgpt("validate", "moe", "--source", "xmoe-012", "--commands")
    words = shlex.split(said.out, comments=True)
    assert words[:2] == ["simgpt", "predict"]
    (row,) = [each for each in read_moe_runs() if each.id == "xmoe-012"]
    assert unnamed(question(words).job) == unnamed(case_of(row).job)


def asked_alike(runs: Sequence[PublishedRun]) -> int:
    """How many runs have a command; each must ask for what is validated."""
    asked = 0
    for each in runs:
        try:
            words = command_of(each)
        except NoCommandError:
            continue
        found, machine = question(words), machine_of(each)
        assert unnamed(found.job) == unnamed(case_of(each).job), each.id
        assert values(found.machine) == values(machine), each.id
        asked += 1
    return asked


def values(machine: Any) -> list[tuple[str, object]]:
    """A machine's numbers; it may be called and described otherwise, also as a variant."""
    labels = ("name", "description", "variant")
    return sorted((fact.key, fact.value) for fact in machine.entries if fact.key not in labels)


def test_a_command_has_the_environment_of_its_rows_job() -> None:
    """JUPITER's first runs went without GPUDirect: NICs of 22.5 GB/s in place of 25."""
    (row,) = [each for each in read_runs() if each.id == "jupiter-124"]
    words = command_of(row)
    assert words[words.index("-m") + 1].endswith(":no-gdr")
    assert values(question(words).machine) == values(machine_of(row))


@pytest.mark.slow
def test_the_command_of_the_issue_gives_the_validated_step() -> None:
    """Llama-3.1-70B on 512 H100 with TP 4, PP 4, VPP 5 and CP 2, published by NVIDIA."""
    (row,) = [each for each in read_runs() if each.id == row_id()]
    said = simgpt(*command_of(row)[1:], "--json")
    rows = json.loads(simgpt("validate", "published", "--source", row.id, "--json").out)["rows"]
    assert json.loads(said.out)["step_s"] == pytest.approx(rows[0]["predicted_step_s"], rel=1e-12)


def row_id() -> str:
    return next(
        each.id
        for each in read_runs()
        if each.text("model").lower().startswith("llama3.1-70b")
        and each.text("gpus_total") == "512"
        and each.text("cp") == "2"
    )


def test_a_run_on_an_unknown_gpu_leaves_the_others_their_commands() -> None:
    lines = [command_line_of(each) for each in (run(gpu="TPUv4"), run())]
    assert_names(lines[0], "a-1", "TPUv4")
    assert lines[1].startswith("simgpt predict ")


def test_a_run_without_a_command_says_why() -> None:
    odd = run(global_batch_seqs="24", micro_batch="2", tp="1", pp="1", dp="8")
    lines = [command_line_of(each) for each in (run(tp=""), odd)]
    assert_names(lines[0], "a-1", "tp")
    assert_names(lines[1], "a-1", "batch")


def test_lines_are_ready_for_a_shell() -> None:
    words = shlex.split(command_line_of(run()), comments=True)
    assert words[:2] == ["simgpt", "predict"]
    assert isinstance(question(words), Step)
