"""Logs of NeMo and Primus, JSON lines of rates, and logs without times, which are named; all
numbers are invented."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.messages import names
from validation.jobs.errors import LogError
from validation.jobs.log_lines import read_log
from validation.jobs.measured_job import LoggedSteps, MeasuredJob
from validation.jobs.reading import read_job
from validation.jobs.step_lines import Job

PRIMUS = (
    " iteration {step:6d}/ 500 | consumed samples: 128 | elapsed time per iteration (ms): "
    "{time}/9450.4 | throughput per GPU (TFLOP/s/GPU): 433.7/430.1 | global batch size:  128 | \n"
)
NEMO = (
    " {rank}: Training epoch 0, iteration {step}/999 | lr: 0.00024 | global_batch_size: 128 | "
    "global_step: {step} | max_memory_reserved: 4294967296 | max_memory_allocated: 2147483648 | "
    "reduced_train_loss: 4.6 | train_step_timing in s: {time} | consumed_samples: 128 | "
    "TFLOPS_per_GPU: 392.7\n"
)
BAR = (
    "Epoch 0: :  3%|3     | {step}/3015 [1:42<55:37, v_num=0, reduced_train_loss=7.0, "
    "global_step={step}.0, consumed_samples={samples}.0, train_step_timing in s={time}]\r"
)


def read(text: str) -> MeasuredJob:
    """The job of a log whose step has 8,192 tokens of each device."""
    return read_log(lambda *marks, **most: text.splitlines(), "train.log", Job(8, 1024, 1))


def test_of_two_times_of_a_step_the_first_is_its_own() -> None:
    """Primus logs the step's time and, behind a stroke, the mean so far."""
    job = read(PRIMUS.format(step=1, time="9431.8") + PRIMUS.format(step=2, time="9432.8"))
    assert [each.step_s for each in job.entries] == pytest.approx([9.4318, 9.4328])
    assert job.entries[0].flops_per_s == pytest.approx(433.7e12)
    assert job.batch == 128


def test_lines_of_nemo_are_steps_of_one_rank_from_zero() -> None:
    text = "".join(
        NEMO.format(rank=rank, step=n, time=t) for n, t in ((0, 9.41), (1, 9.5)) for rank in (0, 1)
    )
    job = read(text)
    assert job.entries == (LoggedSteps(1, 1, 9.41, 392.7e12), LoggedSteps(2, 2, 9.5, 392.7e12))
    assert (job.kind, job.batch) == ("log of NeMo", 128)
    assert (job.peak_bytes, job.peak_of) == (2 * 2**30, "allocated")
    assert any("4.0 GiB" in each and "reserved" in each for each in job.remarks)


def test_a_progress_bar_of_nemo_that_is_drawn_again_says_each_step_once() -> None:
    """256 samples later, two steps have passed: 128 sequences a step."""
    drawn = [(1, 128, 9.0), (1, 128, 9.0), (3, 384, 8.5), (3, 384, 8.5)]
    job = read("".join(BAR.format(step=n, samples=s, time=t) for n, s, t in drawn))
    assert [(each.last, each.step_s) for each in job.entries] == [(1, 9.0), (3, 8.5)]
    assert (job.batch, job.starts) == (128, (1,))


def test_json_lines_of_tokens_per_second_are_steps(tmp_path: Path) -> None:
    """8,192 tokens of a device at 4,096 a second."""
    path = tmp_path / "metrics.jsonl"
    line = '{{"step": {}, "loss": 2.2, "tokens_per_second_per_gpu": 4096}}\n'
    path.write_text(line.format(1) + line.format(2))
    job, _ = read_job(path, Job(8, 1024, 1))
    assert [each.step_s for each in job.entries] == [2.0, 2.0]
    path.write_text('{"step": 1, "loss": 2.2}\n{"step": 2, "loss": 2.1}\n')
    with pytest.raises(LogError, match="step_s"):
        read_job(path, Job(8, 1024, 1))


LINES = {
    "transformers": "{'loss': 1.23, 'grad_norm': 1.1, 'learning_rate': 1e-05, 'epoch': 0.01}",
    "axolotl": "[2025-01-02 10:00:00] [INFO] [axolotl.train.train:100] [PID:1] Starting trainer...",
    "LLaMA-Factory": "[INFO|2025-01-02 10:00:00] llamafactory.data.loader:143 >> Loading dataset",
    "DeepSpeed": "[2025-01-02 10:00:00,1] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, "
    "skipped=0, lr=[0.0001], mom=[(0.9, 0.95)]",
    "OLMo": "2025-01-02 10:00:00 host:0 olmo.train:967 INFO [step=10/1000,epoch=0]",
    "MLPerf": ':::MLLOG {"namespace": "", "time_ms": 1700000000000, "event_type": "POINT_IN_TIME"}',
    "Composer": "[batch=10/4800]:\n\t Train Throughput/tokens_per_sec: 1234.5",
    "Lightning": "Epoch 0:  10%|#  | 10/100 [00:10<01:30,  1.00it/s, v_num=0]",
}


@pytest.mark.parametrize("framework", LINES)
def test_a_log_without_times_is_named_by_whose_it_is(framework: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(f"starting\n{LINES[framework]}\n{LINES[framework]}\n")
    with pytest.raises(LogError, match=framework):
        read_job(path, Job(8, 1024, 1))
    path.write_text(f"{LINES[framework]}\n")
    with pytest.raises(LogError, match=framework):
        read_job(path, Job(8, 1024, 1))


def test_a_time_of_an_iteration_that_is_not_read_is_not_denied() -> None:
    """A message never says that a line is lacking that is there."""
    text = " iteration 1/ 500 | elapsed time per iteration (ms): fast | \n"
    with pytest.raises(
        LogError, check=names("train.log", "elapsed time per iteration (ms): fast |")
    ) as raised:
        read(text)
    assert "no line" not in str(raised.value)
