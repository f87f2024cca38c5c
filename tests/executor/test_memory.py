"""A program that does not fit is refused before it starts: on the host, or on a rank's GPU."""

from __future__ import annotations

import pytest
import torch

from executor import job
from executor.launching.launch_env import RankInfo
from executor.memory import device_memory
from executor.memory.device_memory import RESERVE_BYTES, check_device_memory, check_memory
from executor.rank_context import LEAST_SCRATCH_BYTES, SCRATCH_BYTES, scratch_of
from tests.messages import names
from workload.errors import PlanCannotRunError
from workload.gpt import find_model
from workload.lowering import lower
from workload.plan_text import parse_plan

PROGRAM = lower(find_model("tiny-30k"), parse_plan("dp=2", batch=2))
NEEDED = PROGRAM.peak.total_bytes + LEAST_SCRATCH_BYTES["cuda"] + RESERVE_BYTES


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_kernels_hold_a_share_of_the_peak_between_bounds(device: str) -> None:
    least, most = LEAST_SCRATCH_BYTES[device], SCRATCH_BYTES[device]
    peaks = {0: least, 128 * least + 128: least + 1, 128 * most: most, 128 * most + 128: most}
    assert {peak: scratch_of(peak, torch.device(device)) for peak in peaks} == peaks


def test_a_program_its_kernels_and_the_reserve_must_fit_into_what_is_free_of_a_gpu() -> None:
    check_device_memory(PROGRAM, 1, NEEDED)
    with pytest.raises(PlanCannotRunError, check=names("tiny-30k", "rank 1", "512 MiB")):
        check_device_memory(PROGRAM, 1, NEEDED - 1)


@pytest.mark.parametrize(("free", "fits"), [(NEEDED, True), (NEEDED - 1, False)])
def test_a_rank_on_a_gpu_asks_what_is_free_of_its_own(
    free: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = torch.device("cuda", 1)
    free_of = {own: (free, 80 << 30), torch.device("cuda", 0): (0, 80 << 30)}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: free_of[device])
    info = RankInfo(1, 2, 1, 2)
    if fits:
        job._check_memory(PROGRAM, info, own)
    else:
        with pytest.raises(PlanCannotRunError):
            job._check_memory(PROGRAM, info, own)


def test_all_ranks_of_a_host_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "host_bytes", lambda: 2 * PROGRAM.peak.total_bytes)
    check_memory(PROGRAM, 2)
    with pytest.raises(PlanCannotRunError, check=names("3 rank")):
        job._check_memory(PROGRAM, RankInfo(0, 3, 0, 3), torch.device("cpu"))
