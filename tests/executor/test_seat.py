"""A process finds out which rank it is from what its launcher left in the environment."""

from __future__ import annotations

import pytest

from executor.errors import LaunchError
from executor.seat import Seat

STEP = {"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "2"}
JOB = {"SLURM_JOB_ID": "123456", "SLURM_STEP_NODELIST": "nid[001004-001006,001009]"}


def test_nobody_started_this_process() -> None:
    assert Seat.from_environment({"PATH": "/bin"}) is None


def test_torchrun_says_where_this_process_sits() -> None:
    environment = {
        **{"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
        **{"MASTER_ADDR": "host", "MASTER_PORT": "29500"},
    }
    assert Seat.from_environment(environment) == Seat(5, 16, 1, 4, "env://")


def test_srun_says_it_too_and_ranks_meet_on_the_first_node() -> None:
    assert Seat.from_environment({**STEP, **JOB}) == Seat(5, 16, 1, 1, "tcp://nid001004:23458")


def test_a_meeting_point_that_was_given_is_kept() -> None:
    given = {"MASTER_ADDR": "host", "MASTER_PORT": "29500"}
    seat = Seat.from_environment({**STEP, **JOB, **given})
    assert seat is not None
    assert seat.meeting == "env://"


def test_a_batch_script_is_not_a_rank() -> None:
    script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "1"}
    assert Seat.from_environment(script) is None


@pytest.mark.parametrize("value", ["", "-1", "1.5", "abc", "²"])
def test_a_rank_is_a_whole_number(value: str) -> None:
    with pytest.raises(LaunchError, match="SLURM_PROCID="):
        Seat.from_environment({**STEP, **JOB, "SLURM_PROCID": value})
