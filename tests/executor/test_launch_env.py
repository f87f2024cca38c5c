"""A process finds out which rank it is from what its launcher left in the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.errors import LaunchError
from executor.launching.launch_env import RankInfo
from tests.messages import names

STEP = {"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "2"}
JOB = {"SLURM_JOB_ID": "123456", "SLURM_STEP_NODELIST": "nid[001004-001006,001009]"}


def test_nobody_started_this_process() -> None:
    assert RankInfo.from_environment({"PATH": "/bin"}) is None


def test_torchrun_says_where_this_process_sits() -> None:
    environment = {
        **{"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
        **{"MASTER_ADDR": "host", "MASTER_PORT": "29500"},
    }
    assert RankInfo.from_environment(environment) == RankInfo(5, 16, 1, 4, "env://")


def test_srun_says_it_too_and_ranks_meet_on_the_first_node() -> None:
    info = RankInfo(5, 16, 1, 1, "tcp://nid001004:23458")
    assert RankInfo.from_environment({**STEP, **JOB}) == info


@pytest.mark.parametrize(
    ("text", "most"), [("4", 4), ("4(x2)", 4), ("2(x12),16", 16), ("1(x3),2,1", 2), ("", 1)]
)
def test_srun_says_how_many_ranks_share_a_node(text: str, most: int) -> None:
    info = RankInfo.from_environment({**STEP, **JOB, "SLURM_STEP_TASKS_PER_NODE": text})
    assert info is not None
    assert info.local_ranks == most


def test_ranks_of_this_machine_meet_in_a_file() -> None:
    info = RankInfo.local(1, 2, Path("/private"))
    assert (info.local_rank, info.local_ranks) == (1, 2)
    assert info.store_file == "/private/store"
    assert RankInfo(5, 16, 1, 4, "tcp://host:1").store_file is None


def test_each_rank_of_a_node_has_a_gpu_of_its_own_or_is_refused() -> None:
    assert [RankInfo(8 + local, 16, local, 4).gpu(4) for local in range(4)] == [0, 1, 2, 3]
    for local in range(2):
        with pytest.raises(LaunchError, check=names(f"rank {local}", "2", "1 GPU")):
            RankInfo(local, 2, local, 2).gpu(1)
    with pytest.raises(LaunchError, check=names("rank 3", "4", "2 GPU")):
        RankInfo(3, 8, 3).gpu(2)


def test_the_one_gpu_that_srun_shows_a_rank_is_its_own() -> None:
    assert [RankInfo(local, 4, local, 4, bound=True).gpu(1) for local in range(4)] == [0] * 4
    with pytest.raises(LaunchError, check=names("2 GPU")):
        RankInfo(3, 4, 3, 4, bound=True).gpu(2)


@pytest.mark.parametrize(
    ("said", "bound"),
    [
        ({}, False),
        ({"SLURM_STEP_GPUS": "0"}, False),
        ({"SLURM_STEP_GPUS": "0,1"}, True),
        ({"SLURM_JOB_GPUS": "0,1,2,3"}, True),
        ({"SLURM_GPUS_PER_TASK": "1"}, True),
        ({"SLURM_NTASKS_PER_GPU": "1"}, True),
        ({"SLURM_TRES_PER_TASK": "cpu:7,gres/gpu:1"}, True),
        ({"SLURM_TRES_PER_TASK": "cpu:7"}, False),
        ({"SLURM_GPU_BIND": "closest"}, True),
        ({"SLURM_GPU_BIND": "none"}, False),
    ],
)
def test_two_tasks_of_srun_that_see_one_gpu_have_it_alone_only_if_slurm_bound_them(
    said: dict[str, str], bound: bool
) -> None:
    info = RankInfo.from_environment({**STEP, **JOB, "SLURM_STEP_TASKS_PER_NODE": "2(x8)", **said})
    assert info is not None
    assert info.bound == bound
    if bound:
        assert info.gpu(1) == 0
    else:
        with pytest.raises(LaunchError, check=names("rank 5", "2", "1 GPU")):
            info.gpu(1)


def test_a_meeting_point_that_was_given_is_kept() -> None:
    given = {"MASTER_ADDR": "host", "MASTER_PORT": "29500"}
    info = RankInfo.from_environment({**STEP, **JOB, **given})
    assert info is not None
    assert info.init_method == "env://"


def test_a_batch_script_is_not_a_rank() -> None:
    script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "1"}
    assert RankInfo.from_environment(script) is None


@pytest.mark.parametrize("value", ["", "-1", "1.5", "abc", "²", "9" * 5000])
def test_a_rank_is_a_whole_number(value: str) -> None:
    with pytest.raises(LaunchError, match="SLURM_PROCID="):
        RankInfo.from_environment({**STEP, **JOB, "SLURM_PROCID": value})
