"""What a rank's process is told on its command line and stdin, and what it does and says."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from executor import worker
from executor.launching.launch_env import RankInfo
from executor.launching.task_specs import Calibration, Job, Measurement, task_line
from executor.memorising.spec import Memorisation
from workload.gpt import find_model
from workload.plan import Plan

TINY, ALONE = find_model("tiny-30k"), Plan.of(batch=1, mbs=1, precision="fp32")
CALIBRATION = Calibration(precisions=("fp32",))
MODEL: dict[str, Any] = {"gpt": TINY, "plan": ALONE}
TEXT: dict[str, Any] = {"gpt": TINY, "documents": 1, "passes": 1, "batch": 11, "lr": 1e-3}
TASKS: dict[str, tuple[str, Any]] = {
    "train": ("executor.job.perform", Job(**MODEL, steps=1)),
    "calibrate": ("executor.calibrating.calibrate_worker.measure", CALIBRATION),
    "measure": ("executor.calibrating.measure_ops.measure", Measurement(**MODEL, folder="kept")),
    "memorise": ("executor.memorising.measure.measure", Memorisation(**TEXT)),
}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("task", TASKS)
def test_a_rank_performs_the_task_that_it_is_told_and_rank_0_says_the_result(
    task: str, rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (function, told), said = TASKS[task], list[dict[str, Any]]()

    def perform(description: Any, info: RankInfo, say: Any) -> dict[str, Any]:
        say({"step": 1})
        return {"given": (description, info)}

    def fail(error: Exception) -> dict[str, Any]:
        raise error  # or this process would end

    monkeypatch.setattr(function, perform)
    monkeypatch.setattr(worker, "_failure", fail)
    monkeypatch.setattr(worker, "_answers", lambda: said.append)
    monkeypatch.setattr(worker, "_end_with_parent", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["executor.worker", task, str(rank), "2", str(tmp_path)])
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{task_line(told)}\n"))
    assert worker.main() == 0
    result = {"given": (told, RankInfo.local(rank, 2, tmp_path))}
    assert said == [{"step": 1}, {"result": result}][: 2 - rank]
