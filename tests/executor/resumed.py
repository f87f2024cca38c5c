"""A run that is saved, and the same run again from its middle: what tests of checkpoints compare.

A rank does here what `simgpt run` has it do. One rank runs in the tests' own process, several are
forked, both times by the same processes.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from executor.checkpoints.folder import manifest_of, set_aside
from executor.checkpoints.saving import Saving
from executor.job import perform
from executor.launching.launch_env import RankInfo
from executor.launching.task_specs import AdamW, Job, task_line, task_of
from executor.training.learning_rate import Schedule
from tests.executor import ranks
from topologies.session import Session
from workload.gpt import GPT
from workload.plan_text import parse_plan

# Steps of the whole run, after which of them it is saved, and where it goes on: a rate of its own
# in each, so that a step which is taken for another shows.
STEPS, EVERY, FROM = 3, 2, 2
ANSWER = "answer"
RATES = Schedule(kind="linear", warmup_steps=1, least=2e-3)


@dataclass(frozen=True, slots=True)
class Ran:
    """What rank 0 has of a run: its answer, what it reported, and the digest of each rank's file
    in the last checkpoint, which has all parameters and states."""

    result: dict[str, Any]
    said: list[dict[str, Any]]
    state: list[str]

    @property
    def steps(self) -> list[dict[str, float]]:
        """All that a step gave but its time and memory; a norm that nobody summed is none."""
        kept = ("step", "loss", "grad_norm", "lr", "eval_loss")
        lines = [{key: each[key] for key in kept if key in each} for each in self.reports]
        return [{k: value for k, value in each.items() if value == value} for each in lines]

    @property
    def reports(self) -> list[dict[str, Any]]:
        """What it reported of steps."""
        return [each for each in self.said if "step" in each]

    @property
    def notes(self) -> list[str]:
        """What it noted about its checkpoints."""
        return [each["note"] for each in self.said if "note" in each]


def job_of(gpt: GPT, plan: str, folder: Path, **given: Any) -> Job:
    """A run of so few steps that is saved every second one; large steps, so that what is lost of a
    state shows in bf16 too."""
    about = {"steps": STEPS, "adamw": AdamW(lr=8e-3), "schedule": RATES, "device": "cpu"}
    about |= {"saving": Saving(folder=str(folder), every_steps=EVERY), "timeout_s": ranks.TIMEOUT_S}
    return Job(gpt=gpt, plan=parse_plan(plan, batch=4), **{**about, **given})


def resumes(job: Job, **changed: Any) -> Job:
    """The job that goes on in its folder, but for what changed."""
    assert job.saving is not None, "it is saved"
    return replace(job, saving=replace(job.saving, resume=True), **changed)


def whole_and_resumed(job: Job) -> tuple[Ran, Ran]:
    """A run, and the same one from its middle on, as if it had been stopped before its end."""
    whole, resumed = ran(job, resumes(job))
    return whole, resumed


def ran(*jobs: Job) -> list[Ran]:
    """What rank 0 has of jobs of as many ranks each, one after another in the same processes; none
    sees the last checkpoint of the one before."""
    count = jobs[0].plan.grid.ranks
    with tempfile.TemporaryDirectory() as name:
        told = (count, name, [task_line(job) for job in jobs])
        if count == 1:
            return _all(0, *told)
        start_processes(_forked, told, nprocs=count, start_method="forkserver")  # type: ignore[no-untyped-call]
        return [Ran(**each) for each in json.loads((Path(name) / ANSWER).read_text())]


def _forked(rank: int, count: int, folder: str, told: list[str]) -> None:
    with Session():
        found = _all(rank, count, folder, told)
    if not rank:
        (Path(folder) / ANSWER).write_text(json.dumps([asdict(each) for each in found]))


def _all(rank: int, count: int, folder: str, told: list[str]) -> list[Ran]:
    found: list[Ran] = []
    for number, text in enumerate(told):
        if found and not rank and (last := found[-1].result["newest_checkpoint"]):
            set_aside(Path(last), f".of-{number}")
        store = Path(folder, f"{number}")
        store.mkdir(exist_ok=True)
        found.append(_one(task_of(Job, text), RankInfo.local(rank, count, store)))
    return found


def _one(job: Job, info: RankInfo) -> Ran:
    said: list[dict[str, Any]] = []
    try:
        result = perform(job, info, said.append, ends_on=())
    finally:
        if dist.is_initialized():  # a job that fails leaves its groups to its process's end
            dist.destroy_process_group()
    if info.rank or result["newest_checkpoint"] is None:
        return Ran(result, said, [])
    files = manifest_of(Path(result["newest_checkpoint"])).files
    return Ran(result, said, [files[name].sha256 for name in sorted(files)])


def spoil(file: Path) -> None:
    """Change the last bit of a file; once more, and it is as it was."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
