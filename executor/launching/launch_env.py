"""Which rank this process is, as its launcher says; free of torch, so that a parent can ask."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from executor.errors import LaunchError
from topologies.records import record

ENVIRONMENT = "env://"  # torch's word for MASTER_ADDR and MASTER_PORT
FILE = "file://"
FIRST_PORT, PORTS = 20_000, 10_000
MOST_DIGITS = 19


@record
class RankInfo:
    """Which rank this process is, of how many, and which device of its node it takes.

    `local_ranks` share its node (1 where the launcher does not say); `init_method` is where torch
    finds the other ranks: a URL, or a file on this machine. `bound` says that the launcher shows
    each task one GPU of its own, as srun does with --gpus-per-task or --gpu-bind.
    """

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int = 1
    init_method: str = ENVIRONMENT
    bound: bool = False

    @staticmethod
    def local(rank: int, ranks: int, folder: Path) -> RankInfo:
        """A rank among those of this machine alone, which meet in a file of a private folder."""
        return RankInfo(rank, ranks, rank, ranks, f"{FILE}{folder / 'store'}")

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> RankInfo | None:
        """What torchrun or srun told this process; None when nobody did."""
        if "RANK" in environment or "WORLD_SIZE" in environment:
            return _of_torchrun(environment)
        if "SLURM_PROCID" in environment and "SLURM_NTASKS" in environment:
            return _of_srun(environment)
        return None

    @property
    def store_file(self) -> str | None:
        """The file in which the ranks meet, where they do not meet at an address."""
        return self.init_method.removeprefix(FILE) if self.init_method.startswith(FILE) else None

    def gpu(self, gpus: int) -> int:
        """Which of the `gpus` GPUs that this process sees is its own; refused if none is."""
        if self.bound and gpus == 1:
            return 0
        wanted = max(self.local_ranks, self.local_rank + 1)
        if wanted > gpus:
            raise LaunchError(
                f"rank {self.rank} is one of {wanted} on its node and sees {gpus} GPU(s); give "
                "each rank a GPU of its own (srun --gpus-per-task=1), or --device cpu"
            )
        return self.local_rank


def _of_torchrun(environment: Mapping[str, str]) -> RankInfo:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        if name not in environment:
            given = "RANK" if "RANK" in environment else "WORLD_SIZE"
            raise LaunchError(
                f"{given} is set, but {name} is not; torchrun sets both, and without a launcher "
                "neither should be set"
            )
    _whole(environment, "MASTER_PORT", 1)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return _rank_info(environment, names, ENVIRONMENT)


def _of_srun(environment: Mapping[str, str]) -> RankInfo | None:
    """None inside a batch script or a shell of one task: there, nobody started other ranks."""
    names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")
    told = "MASTER_ADDR" in environment and "MASTER_PORT" in environment
    info = _rank_info(environment, names, ENVIRONMENT if told else _init_method(environment))
    local_ranks = _most_tasks(environment) or info.local_ranks
    info = replace(info, local_ranks=local_ranks, bound=_is_bound(environment, local_ranks))
    started = told or "SLURM_STEP_ID" in environment
    return info if started and info.ranks > 1 else None


def _rank_info(
    environment: Mapping[str, str], names: tuple[str, ...], init_method: str
) -> RankInfo:
    rank, ranks, local_rank, local_ranks = (
        _whole(environment, name, least) for name, least in zip(names, (0, 1, 0, 1), strict=True)
    )
    if rank >= ranks:
        raise LaunchError(f"{names[0]}={rank} must be below {names[1]}={ranks}")
    return RankInfo(rank, ranks, local_rank, local_ranks, init_method)


def _most_tasks(environment: Mapping[str, str]) -> int:
    """The most tasks that a node of the step has, from `4(x2),1`; 0 where Slurm does not say."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    return max(map(int, re.findall(r"(?:^|,)(\d+)", text)), default=0)


def _is_bound(environment: Mapping[str, str], local_ranks: int) -> bool:
    """Whether Slurm shows each task one GPU: it was asked to, or the step has a GPU for each task
    of this node, of which a site's wrapper may then show a task one."""
    if "SLURM_GPUS_PER_TASK" in environment or "SLURM_NTASKS_PER_GPU" in environment:
        return True
    if "gpu" in environment.get("SLURM_TRES_PER_TASK", ""):
        return True
    if "none" not in environment.get("SLURM_GPU_BIND", "none"):
        return True
    gpus = environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS", "")
    return len(gpus.split(",")) >= max(local_ranks, 2)


def _init_method(environment: Mapping[str, str]) -> str:
    """The first node of the step, and a port that other jobs on it are unlikely to choose."""
    nodes = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_NODELIST", "127.0.0.1"))
    first = re.match(r"([^\[,]+)(?:\[(\d+))?", nodes)
    if first is None:
        raise LaunchError(f"SLURM_STEP_NODELIST={nodes} names no node")
    job = _whole(environment, "SLURM_JOB_ID", 0) + _whole(environment, "SLURM_STEP_ID", 0)
    return f"tcp://{first[1]}{first[2] or ''}:{FIRST_PORT + job % PORTS}"


def _whole(environment: Mapping[str, str], name: str, least: int) -> int:
    value = environment.get(name, str(least))
    plain = value.isascii() and value.isdigit() and len(value) < MOST_DIGITS
    if not plain or int(value) < least:
        shown = value if len(value) < MOST_DIGITS else f"{value[:MOST_DIGITS]}…"
        raise LaunchError(f"{name}={shown} must be a whole number of at least {least}")
    return int(value)
