"""Job scripts that start another framework's training."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.messages import assert_names
from tests.simgpt.face import Said, assert_golden, simgpt
from tests.simgpt.jobs.slurm import submitted

LLAMA = ("sbatch", "llama-3.1-8b", "-n", "64", "--batch", "256")
CLUSTER = ("-m", "8x8xH100,8xNDR")
MEGATRON = ("--stack", "megatron-core", "--plan", "tp=2,dp=rest,mbs=1,sp=true")
TITAN = ("--stack", "torchtitan", "--plan", "fsdp=true,dp=rest,mbs=1")
ZERO = "zero=3,dp=rest,mbs=1,overlap=ors+oag,gradients=bf16,recompute=full"
DEEPSPEED = ("--launch", "deepspeed", "--plan", ZERO, "--script", "my train.py")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("megatron", (*CLUSTER, *MEGATRON)),
        ("torchtitan", (*CLUSTER, *TITAN)),
        ("deepspeed", ("-m", "frontier", "--account", "abc123", *DEEPSPEED)),
    ],
)
def test_the_script_of_a_framework_reads_as_its_golden_file(
    name: str, words: tuple[str, ...]
) -> None:
    said = simgpt(*LLAMA, *words)
    assert said.status == 0, said.err
    assert submitted(said.out).ranks == 64
    assert_golden(f"sbatch-launch-{name}.txt", said.out)


def test_the_arguments_are_those_of_export_and_the_time_is_the_stacks() -> None:
    record = json.loads(simgpt(*LLAMA, *CLUSTER, *MEGATRON, "--json").out)
    written = simgpt("export", *LLAMA[1:], "--plan", MEGATRON[-1], "--to", "megatron").out
    lines = record["script"].partition("ARGUMENTS=(\n")[2].splitlines()
    exported = written.replace(" \\\n", "\n").splitlines()
    assert [line.strip() for line in lines[: len(exported)]] == exported
    words = (*LLAMA[1:], *CLUSTER, *MEGATRON, "--json")
    assert record["predicted"]["step_s"] == json.loads(simgpt("predict", *words).out)["step_s"]
    assert record["launch"] == "megatron"


def test_import_reads_the_script_as_the_question_that_was_asked(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(simgpt(*LLAMA, *CLUSTER, *MEGATRON).out, encoding="utf-8")
    record = json.loads(simgpt("import", str(path), "--json").out)
    assert (record["model"], record["devices"], record["batch"]) == ("llama-3.1-8b", 64, 256)
    assert (record["plan"]["tp"], record["changes"]) == (2, [])


def test_torchtitans_file_is_the_exported_one() -> None:
    script = simgpt(*LLAMA, *CLUSTER, *TITAN).out
    text = script.partition("<<'SETTINGS'\n")[2].partition("\nSETTINGS\n")[0]
    assert tomllib.loads(text)["parallelism"]["data_parallel_shard_degree"] == 64


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        ("tp=2,dp=rest,mbs=1", "export CUDA_DEVICE_MAX_CONNECTIONS=1"),
        ("dp=rest,mbs=1,recompute=full", ""),
        ("tp=2,dp=rest,mbs=1,zero=3", "unset CUDA_DEVICE_MAX_CONNECTIONS"),
        ("dp=rest,mbs=1,zero=2", "unset CUDA_DEVICE_MAX_CONNECTIONS"),
    ],
)
def test_megatrons_connections_are_one_where_it_asks_for_that(plan: str, line: str) -> None:
    said = simgpt(*LLAMA, *CLUSTER, "--stack", "megatron-core", "--plan", plan)
    assert said.status == 0, said.err
    lines = [each for each in said.out.splitlines() if "CUDA_DEVICE_MAX_CONNECTIONS" in each]
    assert lines == ([line] if line else [])


def ran(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The script in bash, with one task of srun's on this machine."""
    stubs = {
        "scontrol": "echo localhost",
        "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; SLURM_PROCID=5 SLURM_LOCALID=1 '
        'SLURM_NTASKS=64 exec "$@"',
        "python": 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR"; printf "%s\\n" "$@"',
    }
    for name, line in stubs.items():
        (folder / name).write_text(f"#!/bin/bash\n{line}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n", "SLURM_SUBMIT_DIR": str(folder)}
    path = os.pathsep.join((str(folder), os.environ["PATH"]))
    return subprocess.run(
        ["bash", "-s"],
        input=script,
        text=True,
        capture_output=True,
        timeout=60,
        env={**os.environ, **slurm, "PATH": path, **variables},
        check=False,
    )


def alps(*words: str) -> Said:
    return simgpt(*LLAMA, "-m", "alps", "--account", "a", *words)


def test_a_job_ends_at_a_variable_that_was_not_filled_in(tmp_path: Path) -> None:
    done = ran(alps(*MEGATRON).out, tmp_path)
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert_names(done.stderr, "DATA_PATH")


def test_each_rank_knows_itself_where_srun_starts_it(tmp_path: Path) -> None:
    filled = {"DATA_PATH": "a b", "TOKENIZER_TYPE": "T", "TOKENIZER_MODEL": "m"}
    done = ran(alps(*MEGATRON).out, tmp_path, **filled, LEARNING_RATE="1e-4")
    lines = done.stdout.splitlines()
    assert lines[:2] == ["5 1 64 localhost", "pretrain_gpt.py"], done.stderr
    assert lines[lines.index("--data-path") + 1] == "a b"
    assert lines[lines.index("--train-iters") + 1] == "100"


def test_the_file_of_settings_is_where_the_program_looks_for_it(tmp_path: Path) -> None:
    done = ran(alps(*DEEPSPEED).out, tmp_path)
    lines = done.stdout.splitlines()
    assert lines[1:3] == ["my train.py", "--deepspeed"], done.stderr
    assert json.loads(Path(lines[-1]).read_text(encoding="utf-8"))["train_batch_size"] == 256
