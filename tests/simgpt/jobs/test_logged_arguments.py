"""`simgpt compare LOG` without MODEL: the arguments that jobs print into their logs. The samples
are written from the format strings that `simgpt/frameworks/logs/blocks.py` names; their numbers are
invented."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simgpt.frameworks.imported_job import Instead
from simgpt.frameworks.logs.blocks import KINDS, VOCABULARY, blocks_of
from simgpt.frameworks.logs.logged_job import NoArgumentsError, job_of_log
from simgpt.frameworks.logs.python_repr import value_of
from simgpt.frameworks.reading import FrameworkError
from tests.messages import assert_names, names
from tests.simgpt.face import simgpt

LOGS = Path(__file__).parent / "arguments"
MACHINE = ("-m", "8x8xH100,8xNDR")
# The stack, batch, and keys of the plan; all are of llama-3.1-8b on 64 devices.
TENSOR = {"tp": 2, "mbs": 1, "sp": True, "recompute": "none"}
ASKED = {
    "megatron.log": ("megatron-core", 256, TENSOR | {"zero": 1, "overlap": "oar+dp"}),
    "primus.log": ("primus", 256, TENSOR | {"zero": 1}),
    "nemo1.log": ("nemo", 256, TENSOR | {"zero": 1}),
    "megatron-bridge.log": ("nemo", 256, TENSOR | {"zero": 1}),
    "nanotron.log": ("nanotron", 256, TENSOR | {"zero": 0, "gradients": "fp32"}),
    "torchtitan.log": ("torchtitan", 64, {"zero": 3, "recompute": "selective", "mbs": 1}),
    "torchtitan-json.log": ("torchtitan", 64, {"zero": 3, "recompute": "selective"}),
    "deepspeed.log": ("deepspeed", 64, {"zero": 3, "mbs": 1, "overlap": "ors+oag"}),
}


@pytest.mark.parametrize("name", ASKED)
def test_the_arguments_of_a_log_are_its_question(name: str) -> None:
    stack, batch, plan = ASKED[name]
    found = job_of_log(LOGS / name)
    assert (found.question.model, found.question.devices, found.question.batch) == (
        "llama-3.1-8b",
        64,
        batch,
    )
    assert found.question.stack == stack
    assert {key: found.plan.get(key) for key in plan} == plan
    assert not found.refused
    assert {each.name for each in found.changes} <= set(found.unknown)


def test_every_kind_of_block_has_a_sample() -> None:
    seen = {
        block.kind.name
        for name in (*ASKED, "olmo.log")
        for block in blocks_of((LOGS / name).read_text().splitlines(), lambda line: None)
    }
    assert seen == {kind.name for kind in KINDS}
    assert VOCABULARY in seen


def test_a_configuration_of_olmo_is_its_question_on_devices_that_are_given() -> None:
    found = job_of_log(LOGS / "olmo.log", devices=64)
    assert found.gpt is not None
    assert (found.gpt.ffn, found.gpt.vocab, found.gpt.norm) == (11008, 50304, "layernorm")
    assert (found.question.batch, found.question.stack, found.question.devices) == (
        256,
        "fsdp-eager",
        64,
    )
    told = {"zero": 3, "recompute": "full", "gradients": "bf16", "mbs": 1}
    assert {key: found.plan[key] for key in told} == told
    with pytest.raises(FrameworkError, check=names("-n")):
        job_of_log(LOGS / "olmo.log")


def test_devices_that_are_given_come_before_those_of_the_log() -> None:
    """One sequence for each of 128 ranks, though the log tells of 64."""
    found = job_of_log(LOGS / "torchtitan.log", devices=128)
    assert (found.question.devices, found.question.batch) == (128, 128)


def changed(name: str, tmp_path: Path, before: str, after: str) -> Path:
    """A sample in which one setting has another value."""
    text = (LOGS / name).read_text(encoding="utf-8")
    assert text.count(before) == 1
    path = tmp_path / name
    path.write_text(text.replace(before, after), encoding="utf-8")
    return path


def test_a_job_of_olmo_with_ddp_shards_nothing(tmp_path: Path) -> None:
    """Where FSDP is not used, its settings stand in the log all the same."""
    told = "distributed_strategy='ddp'"
    path = changed("olmo.log", tmp_path, "distributed_strategy='fsdp'", told)
    assert job_of_log(path, devices=64).plan["zero"] == 0


def test_a_job_of_nanotron_with_context_parallelism_has_as_many_times_the_devices(
    tmp_path: Path,
) -> None:
    """Under a stack of the user's, since the one named nanotron has no context axis."""
    told = "context_parallel_size=4"
    path = changed("nanotron.log", tmp_path, "context_parallel_size=1", told)
    found = job_of_log(path, instead=Instead("megatron-core"))
    assert (found.plan["cp"], found.question.batch, found.question.devices) == (4, 256, 4 * 64)


@pytest.mark.parametrize("name", ["megatron.log", "torchtitan.log", "nanotron.log"])
def test_a_comparison_needs_no_model_where_the_log_has_arguments(name: str) -> None:
    said = simgpt("compare", str(LOGS / name), *MACHINE, "--json", "--warm-up", "2")
    found = json.loads(said.out)
    assert found["differences"] == []
    assert found["predicted"]["devices"] == 64
    assert found["asked"]["model"] == "llama-3.1-8b"
    assert "arguments" in found["measured"]["remarks"][0]


def test_what_is_given_comes_before_the_log() -> None:
    words = (*MACHINE, "--plan", "tp=4,dp=rest,mbs=1,sp=true", "--batch", "128", "--json")
    found = json.loads(simgpt("compare", str(LOGS / "megatron.log"), *words, "--warm-up", "0").out)
    assert found["asked"]["stack"] == "megatron-core"
    batch, tp = found["differences"]
    assert_names(batch, "batch", "256 sequences", "128")
    assert_names(tp, "tp", "2", "4")


def test_the_last_of_several_blocks_counts(tmp_path: Path) -> None:
    text = (LOGS / "megatron.log").read_text(encoding="utf-8")
    again = text.replace(
        "global_batch_size ............................... 256",
        "global_batch_size ............................... 512",
    )
    path = tmp_path / "train.log"
    path.write_text(text + again, encoding="utf-8")
    assert job_of_log(path).question.batch == 512
    cut = again[: again.index("global_batch_size") + 80]
    path.write_text(text + cut, encoding="utf-8")
    assert job_of_log(path).question.batch == 256


def test_blocks_of_ranks_that_take_turns_are_one_ranks(tmp_path: Path) -> None:
    lines = (LOGS / "megatron-bridge.log").read_text(encoding="utf-8").splitlines()
    turns = [each for line in lines for each in (line, line.replace("0: ", "1: ", 1))]
    path = tmp_path / "train.log"
    path.write_text("\n".join(turns), encoding="utf-8")
    assert job_of_log(path).question.batch == 256


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[batch=1/2]:\n", ["MODEL", "--plan"]),
        ("Running with args: {'a': __import__('os')}\n", ["MODEL"]),
        ("Running with args: {'a': 1 + }\n", ["train.log"]),
        ("Config(general=1, parallelism=2)\n", ["parallelism"]),
        ('  json = {"train_batch_size": 8}\n', ["MODEL"]),
    ],
)
def test_what_a_log_does_not_say_is_asked_for(text: str, named: list[str], tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FrameworkError, check=names(*named)):
        job_of_log(path)


def test_a_log_without_arguments_asks_for_model_and_plan() -> None:
    log = Path(__file__).parents[2] / "validation/jobs/samples/maxtext.log"
    with pytest.raises(NoArgumentsError, check=names("MODEL", "--plan")):
        job_of_log(log)
    said = simgpt("compare", str(log), *MACHINE)
    assert said.status == 2
    assert "MODEL" in said.sentence


@pytest.mark.parametrize("text", ["f()[0]", "lambda: 0", "[x for x in y]", "(" * 500, "-" * 5000])
def test_a_printed_value_is_never_evaluated(text: str) -> None:
    with pytest.raises(FrameworkError):
        value_of(text, "the log")
