"""`simgpt sbatch`: job scripts as people read them, as Slurm takes them, and as bash runs them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpt.sites.job_script import (
    JobRequest,
    job_name,
    job_script,
    limit_of,
    nodes_of,
    seconds_of,
    shell_line,
    slurm_name,
    time_text,
)
from simgpt.sites.site import NAMES, JobCannotRunError, JobError, sites
from tests.messages import assert_names, names
from tests.simgpt.face import Said, assert_golden, simgpt
from tests.simgpt.jobs.slurm import submitted
from topologies.machine_files import load_machine
from workload.plan_text import parse_plan

MACHINES = {
    "frontier": "frontier",
    "perlmutter": "perlmutter",
    "alps": "alps",
    "lumi": "lumi",
    "generic": "8x8xH100,8xNDR",
}
PLAN = ("--plan", "z=8,dp=rest,recompute=full", "--batch", "64")


def script(machine: str, *words: str, devices: int = 64) -> Said:
    return simgpt("sbatch", "gpt-5b", "-m", machine, "-n", f"{devices}", *PLAN, *words)


@pytest.mark.parametrize("site", NAMES)
def test_a_job_script_reads_as_its_golden_file(site: str) -> None:
    said = script(MACHINES[site], "--account", "abc123")
    assert (said.status, said.err) == (0, "")
    assert_golden(f"sbatch-{site}.txt", said.out)


@pytest.mark.parametrize(
    ("site", "devices"), [*((each, 64) for each in NAMES), ("frontier", 8), ("perlmutter", 32)]
)
def test_slurm_takes_the_script_and_starts_a_rank_for_each_device(site: str, devices: int) -> None:
    said = script(MACHINES[site], "--account", "abc123", "--partition", "debug", devices=devices)
    found = submitted(said.out)
    assert found.ranks == devices
    assert found.options["--partition"] == "debug"
    per_node = load_machine(MACHINES[site]).node.devices
    assert int(found.options["--nodes"]) == devices // per_node


@pytest.mark.parametrize("site", NAMES)
def test_every_setting_of_a_site_has_its_source(site: str) -> None:
    found = sites()[site]
    settings = (*found.directives, *found.modules, *found.environment, *found.srun)
    assert all(each.source for each in settings)
    assert all(each in (load_machine(each).name) for each in found.machines)
    assert found.devices_per_node in (0, *(load_machine(m).node.devices for m in found.machines))


@pytest.mark.parametrize(
    ("machine", "constraint"),
    [
        ("perlmutter", "gpu"),
        ("32x4xA100-80,4xSlingshot-11,name=perlmutter", "gpu&hbm80g"),
        ("32x4xA100-80,4xSlingshot-11,name=mine", "gpu&hbm80g"),
        ("32x4xA100-40,4xSlingshot-11", "gpu"),
    ],
)
def test_perlmutter_is_asked_for_nodes_with_the_devices_that_were_predicted(
    machine: str, constraint: str
) -> None:
    said = script(machine, "--site", "perlmutter", "--account", "abc123")
    assert submitted(said.out).options["--constraint"] == constraint
    assert ("NERSC docs" in said.out) == (constraint != "gpu")  # the source of that setting


@pytest.mark.parametrize(
    ("launcher", "tasks", "cores"), [("torchrun", "1", "56"), ("srun", "8", "7")]
)
def test_cores_are_those_of_a_tasks_ranks(launcher: str, tasks: str, cores: str) -> None:
    """7 for each of 8 ranks of a node, which torchrun starts from one task and srun each itself."""
    site = replace(sites()["generic"], launcher=launcher, cpus_per_task=7)
    job = JobRequest("job", 2, 8, is_full=True, limit_s=600.0, words=("run",))
    options = submitted(job_script(site, job)).options
    assert (options["--ntasks-per-node"], options["--cpus-per-task"]) == (tasks, cores)


def test_trays_of_racks_are_slurms_nodes_and_segments_theirs() -> None:
    said = script("gb200-nvl72", "--segment", "8")
    options = submitted(said.out).options
    assert (options["--nodes"], options["--segment"]) == ("16", "8")
    assert options["--gpus-per-node"] == "4"
    assert "--segment" not in submitted(script("4x8xH100,8xNDR", devices=16).out).options


def test_the_run_is_the_plan_that_was_predicted() -> None:
    said = script("frontier", "--json", "--model-set", "sequence=1024", "--steps", "7")
    record = json.loads(said.out)
    words = shlex.split(record["script"].replace("\\\n", " ").splitlines()[-1])
    run = words[words.index("run") + 1 :]
    given = dict(zip(run[1::2], run[2::2], strict=True))
    assert run[0] == "gpt-5b"
    plan = parse_plan(given["--plan"], devices=64, batch=int(given["--batch"]))
    assert plan.as_dict() == record["predicted"]["plan"]
    assert (given["--steps"], given["-m"]) == ("7", "frontier")
    assert given["--model-set"] == "sequence=1024"


def test_a_machine_that_was_changed_is_not_predicted_with_beside_the_run() -> None:
    said = script("frontier", "--set", "node.nics.bandwidth=0.5x")
    assert said.out.rstrip().endswith("--no-predict")


def test_the_prediction_and_the_time_that_follows_from_it_stand_in_the_script() -> None:
    told = json.loads(
        simgpt("predict", "gpt-5b", "-m", "frontier", "-n", "64", *PLAN, "--json").out
    )
    record = json.loads(script("frontier", "--steps", "10000", "--json").out)
    assert record["predicted"]["step_s"] == told["step_s"]
    needed = 1.25 * 10_000 * told["high_step_s"] + 600
    assert needed <= record["limit_s"] < needed + 300
    assert f"#SBATCH --time={time_text(record['limit_s'])}" in record["script"]


def test_a_time_limit_that_is_too_short_is_said() -> None:
    said = script("frontier", "--account", "a", "--steps", "10000", "--time", "10")
    assert "#SBATCH --time=00:10:00\n" in said.out
    assert_names(said.err, "00:10:00")
    assert "03:1" in said.err


def test_a_centre_that_charges_jobs_wants_an_account() -> None:
    assert "give --account" in script("lumi").err
    assert script("8x8xH100,8xNDR").err == ""


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        (("--account", "a\n#SBATCH --uid=0"), 2, ["account"]),
        (("--account", "a b"), 2, ["account", "a b"]),
        (("--partition", "$(id)"), 2, ["partition", "$(id)"]),
        (("--partition", "--wrap=id"), 2, ["partition", "--wrap=id"]),
        (("--time", "soon"), 2, ["soon", "02:00:00"]),
        (("--time", "00:00:00"), 2, ["00:00:00", "02:00:00"]),
        (("--setup", "a\nb"), 2, ["--setup"]),
        (
            ("--stack", "axonn"),
            3,
            ["--launch", "megatron", "torchtitan"],
        ),
        (("--plan", "dp=rest,precision=fp8"), 3, ["fp8", "--launch", "megatron"]),
        (("--script", "a.py"), 2, ["--script"]),
        (("--launch", "megatron"), 3, ["Megatron-LM", "z"]),
        (("--launch", "deepspeed", "--script", "a\nb"), 3, ["DeepSpeed", "z=8"]),
        (("--site", "perlmutter"), 3, ["4 devices", "frontier", "8"]),
        (("--batch-tokens", "1Mi"), 2, ["--batch", "--batch-tokens"]),
    ],
)
def test_what_no_job_can_have_is_refused(
    words: tuple[str, ...], status: int, named: list[str]
) -> None:
    said = script("frontier", *words)
    assert said.status == status
    assert_names(said.sentence, *named)


def test_a_plan_that_does_not_fit_and_ranks_that_do_not_fill_nodes_are_refused() -> None:
    said = simgpt(
        "sbatch", "gpt-640b", "-m", "frontier", "-n", "8", "--plan", "z=8", "--batch", "8"
    )
    assert said.status == 3
    assert_names(said.sentence, "GiB")
    with pytest.raises(JobCannotRunError, check=names("12 ranks", "8", "16")):
        nodes_of(12, 8)
    assert [nodes_of(ranks, 8) for ranks in (1, 3, 8, 64)] == [1, 1, 1, 8]


@settings(max_examples=50)
@given(st.text(max_size=40))
def test_whatever_is_typed_no_name_leaves_its_line(text: str) -> None:
    """A name is taken as it is, or refused; a model's name is made one."""
    for check in (partial(slurm_name, what="account"), shell_line):
        try:
            assert "\n" not in check(text)
        except JobError:
            continue
    assert job_name(text).isascii()
    assert not set(job_name(text)) & set(" \n\t;$`'\"\\#()&|<>")


@given(st.integers(1, 300 * 86_400))
def test_a_time_limit_is_read_as_it_is_written(seconds: int) -> None:
    assert seconds_of(time_text(seconds)) == seconds


def test_a_time_limit_has_a_quarter_more_and_ten_minutes() -> None:
    """100 steps of 6 s: 750 s and 600 s, rounded up to 1,500 s."""
    assert limit_of(6.0, 100) == 1500


def test_a_models_name_and_path_are_quoted(tmp_path: Path) -> None:
    path = tmp_path / "my $(model)'s.toml"
    fields = "layers = 2\nhidden = 64\nheads = 2\nsequence = 64\nvocab = 256\n"
    path.write_text(fields, encoding="utf-8")
    said = simgpt("sbatch", str(path), "-m", "frontier", "-n", "8", "--batch", "8")
    assert submitted(said.out).ranks == 8
    assert shlex.quote(str(path)) in said.out


def test_a_script_says_the_stack_that_nobody_named() -> None:
    words = ("sbatch", "gpt-5b", "-m", "8x8xH100,8xNDR", "-n", "64", "--batch", "64")
    assert "# stack megatron-core, usual on" in simgpt(*words).out
    assert "# stack" not in simgpt(*words, "--stack", "megatron-core").out


@pytest.mark.slow
def test_from_a_config_of_hugging_face_to_a_script_of_the_fastest_plan(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    sizes = {"n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 128, "vocab_size": 512}
    config.write_text(json.dumps({"model_type": "gpt2", **sizes}), encoding="utf-8")
    model = (str(config), "--model-set", "sequence=64")
    asked = (*model, "-m", "perlmutter", "-n", "4", "--batch", "16", "--stack", "simgpt")
    few = ("--plan", "pp=1,recompute=none,order=tp-dp-pp")
    best = json.loads(simgpt("search", *asked, *few, "--json").out)["plans"][0]["plan_string"]
    said = simgpt("sbatch", *asked, "--plan", best, "--account", "m1234", "--steps", "200")
    assert (said.status, submitted(said.out).ranks) == (0, 4)
    assert f"--plan {best} --batch 16" in said.out


LOG = 'echo "$(basename "$0") $*" >> "$STUB_LOG"'
STUBS = {
    "scontrol": f"echo localhost; {LOG}",
    "srun": LOG + '; while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"',
}


def ran(folder: Path, stubs: Mapping[str, str]) -> tuple[str, list[str]]:
    """What a script of two ranks prints with stand-ins for these programs, and their calls."""
    words = ("--plan", "dp=2,precision=fp32", "--batch", "8", "--steps", "3")
    said = simgpt("sbatch", "tiny-30k", "-m", "host", "-n", "2", *words)
    assert said.status == 0, said.err
    for name, line in stubs.items():
        (folder / name).write_text(f"#!/bin/bash\n{line}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    folders = (str(folder), str(Path(sys.executable).parent), os.environ["PATH"])
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(folders),
        "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
        "STUB_LOG": str(folder / "log"),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_NODELIST": "localhost",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", "-s"],
        input=said.out,
        text=True,
        capture_output=True,
        timeout=240,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, (folder / "log").read_text(encoding="utf-8").splitlines()


def test_the_script_of_any_cluster_starts_the_plan(tmp_path: Path) -> None:
    """srun starts torchrun at the job's first node, on the port 20000 + 4711, and that the run."""
    _, log = ran(tmp_path, STUBS | {"python": LOG})
    assert log[0] == "scontrol show hostnames localhost"
    srun, python = (line.split() for line in log[1:])
    assert srun[:3] == ["srun", "--cpu-bind=none", "--kill-on-bad-exit=1"]
    assert srun[3:] == python
    assert python[:4] == ["python", "-P", "-m", "torch.distributed.run"]
    run = python.index("simgpt")
    assert {"--nnodes=1", "--nproc-per-node=2", "--rdzv-endpoint=localhost:24711"} < {*python[:run]}
    plan = ["--plan", "dp=2,precision=fp32"]
    asked = [*plan, "--batch", "8", "--steps", "3", "-m", "host"]
    assert python[run - 1 :] == ["-m", "simgpt", "run", "tiny-30k", *asked]


@pytest.mark.slow
@pytest.mark.distributed
def test_the_script_of_any_cluster_runs_the_plan(tmp_path: Path) -> None:
    """Two ranks on this machine's cores, with stand-ins for srun and scontrol."""
    out, _ = ran(tmp_path, STUBS)
    assert "step 3/3" in out
    assert_names(out, "tiny-30k", "dp=2,precision=fp32")
