"""Of several ranks that ended or fell silent, the cause is named, with its own words."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from executor.launching.blame import Death, Origin, cause, death_of, silence
from executor.launching.procfs import STOPPED, state_of
from executor.launching.sentences import first_sentence, last_words
from tests.executor.scripts import SLEEP, SPIN, acting, says
from tests.messages import assert_names
from workload.errors import PlanCannotRunError


def dead(rank: int, status: int, origin: Origin) -> Death:
    return Death(rank, status, origin, f"rank {rank}")


OWN, UNKNOWN, PEERS, WATCHDOG = Origin


@pytest.mark.parametrize(
    ("origins", "guilty"),
    [
        ((PEERS, OWN), 1),
        ((WATCHDOG, OWN, PEERS), 1),
        ((WATCHDOG, PEERS), 1),
        ((PEERS, UNKNOWN), 1),
        ((UNKNOWN, PEERS, OWN), 2),
        ((OWN, OWN), 0),
    ],
)
def test_a_rank_that_lost_another_is_not_to_blame(origins: tuple[Origin, ...], guilty: int) -> None:
    """Whatever their exit statuses are; that of a signal is negative."""
    for statuses in ((-9, 5, 1), (1, -6, 5), (5, 1, -9)):
        deaths = [dead(r, statuses[r], origin) for r, origin in enumerate(origins)]
        assert cause(deaths).rank == guilty


def ended(folder: Path, script: str) -> Death:
    with acting(folder, script) as (each,):
        while each.listen() is not None:
            pass
        each.process.wait()
        death = death_of(each)
    assert death is not None
    return death


ABORTED = "terminate called after throwing an instance of 'c10::DistBackendError'\\n  what():  {}"


@pytest.mark.parametrize(
    ("script", "origin", "named"),
    [
        ("kill -9 $$", OWN, ["rank 0", "SIGKILL"]),
        ("kill -35 $$", OWN, ["rank 0", "35"]),
        ("kill -6 $$", OWN, ["rank 0", "SIGABRT"]),
        (
            f'printf "{ABORTED.format("[Rank 0] Watchdog caught a timeout")}" >&2; kill -6 $$',
            WATCHDOG,
            ["rank 0", "SIGABRT", "Watchdog caught a timeout"],
        ),
        ("echo boom >&2; exit 1", UNKNOWN, ["rank 0", "boom"]),
        ("exit 7", UNKNOWN, ["rank 0", "7"]),
        (
            says(failed="no text", status=2, lost=False) + "; exit 2",
            OWN,
            ["rank 0", "no text"],
        ),
        (
            says(failed="rank 0 lost it", status=5, lost=True) + "; exit 5",
            PEERS,
            ["rank 0 lost it"],
        ),
    ],
)
def test_how_a_rank_ended_is_said_in_its_own_words(
    script: str, origin: Origin, named: list[str], tmp_path: Path
) -> None:
    death = ended(tmp_path, script)
    assert death.origin == origin
    assert_names(death.sentence, *named)


def test_a_plan_that_cannot_run_stays_one(tmp_path: Path) -> None:
    said = says(failed="x needs 9 TiB", status=3, lost=False)
    error = ended(tmp_path, f"{said}; exit 3").error()
    assert isinstance(error, PlanCannotRunError)
    assert str(error) == "x needs 9 TiB"


def test_a_rank_that_runs_or_ended_well_is_not_dead(tmp_path: Path) -> None:
    with acting(tmp_path, SLEEP, "exit 0") as (runs, done):
        assert death_of(runs) is None
        done.process.wait()
        assert death_of(done) is None


CUDA = """Traceback (most recent call last):
  File "job.py", line 1, in perform
    raise RuntimeError("CUDA error")
torch.AcceleratorError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
DUPLICATE = """NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000
"""


def test_the_line_that_names_an_error_is_shown_and_not_the_advice_behind_it() -> None:
    assert last_words(CUDA) == ("torch.AcceleratorError: CUDA error: device-side assert triggered")
    assert (
        last_words(
            ABORTED.format("CUDA error: out of memory\nCompile with DSA")
            .encode()
            .decode("unicode_escape")
        )
        == "CUDA error: out of memory"
    )
    assert last_words("[W] NCCL version 2\nlibcuda: CUDA driver is too old\nbye\n") == (
        "libcuda: CUDA driver is too old"
    )
    assert last_words("first\nlast\n\n") == "last"
    assert last_words("") == ""


def test_ncc_ls_own_account_of_the_cause_is_part_of_the_sentence() -> None:
    sentence = first_sentence(DUPLICATE)
    assert sentence.startswith("NCCL error in: ")
    assert sentence.endswith(
        ": Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"
    )
    assert first_sentence("[enforce fail at alloc.cpp:1] no memory\nmore") == "no memory"


def test_of_silent_ranks_the_stopped_one_is_named_whatever_the_others_do(tmp_path: Path) -> None:
    with acting(tmp_path, SPIN, SLEEP) as ranks:
        os.kill(ranks[1].process.pid, signal.SIGSTOP)
        while state_of(ranks[1].process.pid).state != STOPPED:
            time.sleep(0.01)
        said = str(silence(ranks, 2.0))
    assert_names(said, "2 s", "--timeout", "rank 1", "SIGSTOP")
    assert "rank 0" not in said


def test_of_silent_ranks_one_that_computes_is_named_and_not_called_a_hang(tmp_path: Path) -> None:
    with acting(tmp_path, SLEEP, SPIN) as ranks:
        while state_of(ranks[1].process.pid).processor_s < 0.1:
            time.sleep(0.01)
        ranks[1].step = 12
        ranks[1].heard_s = ranks[0].heard_s + 1
        said = str(silence(ranks, 2.0))
    assert_names(said, "rank 1", "step 12", "computing")
    assert "rank 0" not in said


def test_of_ranks_that_wait_the_one_that_was_silent_first_is_named(tmp_path: Path) -> None:
    with acting(tmp_path, SLEEP, SLEEP) as ranks:
        ranks[0].heard_s = ranks[1].heard_s + 1
        said = str(silence(ranks, 2.0))
    assert_names(said, "rank 1")
    assert "rank 0" not in said


def test_a_greeting_of_gloo_is_no_part_of_the_reason() -> None:
    said = "[/pytorch/gloo/pair.cc:553] Read error GLHF! 🏖️Connection reset by peer"
    assert first_sentence(said) == "Read error Connection reset by peer"
