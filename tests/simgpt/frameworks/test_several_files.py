"""Scripts that build on others, values that are not in them, and files that are something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simgpt.frameworks.scripts.job_script import job_variables
from tests.messages import assert_names
from tests.simgpt.face import Said, simgpt

SIZES = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 512"
TRAIN = f"python pretrain_gpt.py {SIZES} --micro-batch-size 1 --bf16"
SPLIT = "--tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(**files: str) -> Said:
    """What `simgpt import` says of scripts of these names, in this order."""
    for name, text in files.items():
        Path(f"{name}.sh").write_text(f"{text}\n", encoding="utf-8")
    return simgpt("import", *(f"{name}.sh" for name in files), "-n", "16", "--json")


@pytest.mark.parametrize(
    "env", ["export TP=2\nPP=8", "TP=2 PP=8", "export TP=2 PP=8", "PP=8 TP='2' # sizes"]
)
def test_variables_of_a_script_reach_the_next_which_may_change_them(env: str) -> None:
    said = imported(env=env, train=f"PP=4\n{TRAIN} {SPLIT}")
    assert said.status == 0, said.err
    plan = json.loads(said.out)["plan"]
    assert (plan["tp"], plan["pp"]) == (2, 4)


def test_a_job_script_says_the_devices_of_the_script_that_it_starts() -> None:
    Path("job.sh").write_text("#SBATCH -N 2 --gpus-per-node=8\nbash train.sh\n", encoding="utf-8")
    Path("train.sh").write_text(
        f"{TRAIN} --global-batch-size $((SLURM_NNODES * 16))\n", encoding="utf-8"
    )
    record = json.loads(simgpt("import", "job.sh", "train.sh", "--json").out)
    assert (record["devices"], record["batch"]) == (16, 32)


def test_a_script_of_variables_alone_is_named() -> None:
    said = imported(env="TP=2\nPP=4")
    assert said.status == 2
    assert_names(said.err, "env.sh", "simgpt import env.sh SCRIPT")


@pytest.mark.parametrize("line", ["source ./env.sh", ". env.sh", 'source "$(dirname $0)/env.sh"'])
def test_a_file_that_a_script_takes_in_is_said_until_it_is_given(line: str) -> None:
    record = json.loads(imported(train=f"{line}\nsource venv/bin/activate\n{TRAIN}").out)
    (change,) = record["changes"]
    assert change["name"] in ("source ./env.sh", "source env.sh")
    assert_names(change["why"], "env.sh train.sh")
    record = json.loads(imported(env="TP=2", train=f"{line}\n{TRAIN}").out)
    assert record["changes"] == []


@pytest.mark.parametrize(
    ("script", "named"),
    [
        (f"{TRAIN} --global-batch-size $((4 * RANKS))", ["--define RANKS=VALUE"]),
        (f"B=$(python b.py)\n{TRAIN} --global-batch-size $B", ["--define B=VALUE"]),
        (f"B=$(python b.py)\n{TRAIN} --global-batch-size $((B*2))", ["--define B=VALUE"]),
        (f"N=$((RANKS*2))\n{TRAIN} --global-batch-size $((N+1))", ["--define RANKS=VALUE"]),
        (f"{TRAIN} --global-batch-size `python b.py`", ["--global-batch-size"]),
    ],
)
def test_a_value_that_is_not_in_the_script_names_its_variable(
    script: str, named: list[str]
) -> None:
    said = imported(train=script)
    assert said.status == 2
    assert_names(said.sentence, *named)


def test_a_value_that_a_file_taken_in_may_set_names_that_file_too() -> None:
    said = imported(train=f". env.sh\n{TRAIN} --global-batch-size $B")
    assert_names(said.sentence, "--define B=VALUE", "simgpt import env.sh train.sh")


def test_what_a_command_would_say_can_be_defined() -> None:
    imported(train=f"B=$(python b.py)\n{TRAIN} --global-batch-size $((B*2))")
    said = simgpt("import", "train.sh", "-n", "16", "--json", "--define", "B=16")
    assert json.loads(said.out)["batch"] == 32


@pytest.mark.parametrize(
    ("flag", "near"),
    [
        ("--num-layer 40", "--num-layers"),
        ("--num-querry-groups 2", "--num-query-groups"),
        ("--tp-com-overlap", "--tp-comm-overlap"),
        ("--novel-trick", ""),
    ],
)
def test_a_mistyped_flag_is_said_with_its_nearest(flag: str, near: str) -> None:
    (change,) = json.loads(imported(train=f"{TRAIN} {flag}").out)["changes"]
    assert change["name"].split() == flag.split()[:1]
    assert_names(change["why"], near)
    assert ("--" in change["why"]) == bool(near)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("config.json", '{"model_type": "llama"}', "simgpt predict config.json -m"),
        ("train.log", "anything", "simgpt compare train.log"),
        ("job.out", " iteration        1/      16 | consumed", "simgpt compare job.out"),
        ("job.out", "x\n------------ arguments ------------\n", "simgpt compare job.out"),
    ],
)
def test_a_file_for_another_command_names_that(name: str, text: str, why: str) -> None:
    Path(name).write_text(text, encoding="utf-8")
    said = simgpt("import", name)
    assert said.status == 2
    assert_names(said.sentence, why)


def test_predict_names_import_for_a_script() -> None:
    Path("train.sh").write_text(TRAIN, encoding="utf-8")
    said = simgpt("predict", "train.sh", "-m", "frontier", "-n", "8")
    assert said.status == 2
    assert_names(said.sentence, "simgpt import train.sh")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        # sbatch(1): each is set where its option is given, to what is given.
        ("--gpus-per-node=4", {"SLURM_GPUS_PER_NODE": "4", "SLURM_GPUS_ON_NODE": "4"}),
        ("--gpus-per-node=a100:4", {"SLURM_GPUS_PER_NODE": "a100:4", "SLURM_GPUS_ON_NODE": "4"}),
        ("--gres=gpu:4", {"SLURM_GPUS_ON_NODE": "4"}),
        ("--ntasks-per-node=8", {"SLURM_NTASKS_PER_NODE": "8", "SLURM_GPUS_ON_NODE": "8"}),
        ("--cpus-per-task=72", {"SLURM_CPUS_PER_TASK": "72"}),
        ("--nodes=2", {"SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2"}),
    ],
)
def test_slurm_sets_a_variable_for_each_option(options: str, found: dict[str, str]) -> None:
    assert job_variables(f"#SBATCH {options}\n") == found
