"""Steps from the logs of frameworks; all numbers are invented."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.messages import assert_names, names
from validation.jobs.errors import LogError
from validation.jobs.log_lines import read_log
from validation.jobs.measured_job import LoggedSteps, MeasuredJob, statistics
from validation.jobs.reading import read_job
from validation.jobs.records import read_lines
from validation.jobs.step_lines import Job, by_clock

MEGATRON = (
    " [2026-01-15 10:00:00] iteration {step:8d}/     500 | consumed samples:         2560 | "
    "elapsed time per iteration ({unit}): {time} | throughput per GPU (TFLOP/s/GPU): 400.0 | "
    "learning rate: 1.5E-05 | global batch size:   256 | loss scale: 1.0 |\n"
)
TITAN = (
    "[rank{rank}]:\x1b[31mstep: {step:2}  \x1b[32mloss: 11.00000  \x1b[38;2;1;2;3mgrad_norm:  2.5  "
    "\x1b[36mmemory: {gib:5.2f}GiB(50.00%)  \x1b[34mtps: {tps:,}  \x1b[36mtflops: 300.50  "
    "\x1b[35mmfu: 30.38%\x1b[39m\n"
)


def megatron(*steps: tuple[int, float], unit: str = "ms") -> str:
    return "".join(MEGATRON.format(step=n, time=f"{t:.1f}", unit=unit) for n, t in steps)


def read(text: str) -> MeasuredJob:
    """The job of a log whose step has 8,192 tokens of each device."""
    return read_log(lambda *marks, **most: text.splitlines(), "train.log", Job(8, 1024, 1))


def test_megatrons_iterations_are_steps_in_milliseconds() -> None:
    job = read(megatron((1, 9000.0), (2, 1500.0), (3, 1250.0)))
    assert job.entries == (
        LoggedSteps(1, 1, 9.0, 400e12),
        LoggedSteps(2, 2, 1.5, 400e12),
        LoggedSteps(3, 3, 1.25, 400e12),
    )
    assert (job.kind, job.batch) == ("log of Megatron-LM", 256)


def test_megatrons_memory_and_timers_are_read() -> None:
    text = megatron((1, 1000.0)) + (
        "[Rank 0] (after 1 iterations) memory (MB) | allocated: 100.00 | max allocated: 2048.00 | "
        "reserved: 4096.00 | max reserved: 4096.00\n"
        "(min, max) time across ranks (ms):\n"
        "    forward-backward ...............................: (900.00, 950.00)\n"
    )
    job = read(text)
    assert (job.peak_bytes, job.peak_of) == (2 * 2**30, "allocated")
    assert job.timers_s == {"forward-backward": pytest.approx(0.95)}


ARGUMENTS = (
    "using world size: 512, data-parallel size: 16, context-parallel size: 2, hierarchical "
    "context-parallel sizes: None, tensor-model-parallel size: 4, encoder-tensor-model-parallel "
    "size: 0, pipeline-model-parallel size: 4\n"
    "------------------------ arguments ------------------------\n"
    "  hidden_size ..................................... 4096\n"
    "  kv_channels ..................................... None\n"
    "  micro_batch_size ................................ 2\n"
    "  num_layers ...................................... 32\n"
    "  seq_length ...................................... 8192\n"
    "  seed ............................................ 1234\n"
)
MEMORY = (
    "[Rank 0] (after 2 iterations) memory (MB) | allocated: 100.00 | max allocated: 2048.00 | \n"
)
TIMER = "    optimizer ......................................: (18.20, 18.44)\n"


def test_a_job_of_megatrons_states_its_sizes() -> None:
    job = read(ARGUMENTS + megatron((1, 1000.0)))
    assert job.ranks == 512
    assert job.sizes == {
        **{"tp": 4, "pp": 4, "cp": 2, "micro-batch": 2},
        **{"layers": 32, "hidden": 4096, "sequence": 8192},
    }


def test_the_world_size_that_deepspeed_prints_is_not_the_number_of_devices() -> None:
    """It has 16 data-parallel ranks in its configuration, of 512 devices."""
    line = "[2026-01-15 10:00:00,100] [INFO] [config.py:1013:print]   world_size ........ 16\n"
    assert read(ARGUMENTS + line + megatron((1, 1000.0))).ranks == 512


@pytest.mark.parametrize(
    ("line", "sizes"),
    [
        ("Building 3-D device mesh with ['pp', 'dp_shard', 'tp'], [2, 4, 8]", (64, 2, 1, 8)),
        (
            "Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=4, cp=2, tp=1, "
            "ep=4, etp=1",
            (16, 1, 2, 1),
        ),
    ],
)
def test_a_job_of_torchtitans_states_its_sizes(line: str, sizes: tuple[int, ...]) -> None:
    trainer = (
        "[rank0]:[titan] x - root - INFO - Trainer is initialized with local batch size 2, global "
        "batch size 64, gradient accumulation steps 1, sequence length 8192, total steps 1000\n"
    )
    step = TITAN.format(rank=0, step=1, tps=1024, gib=10)
    job = read(f"[rank0]:[titan] x - root - INFO - {line}\n{trainer}{step}")
    assert (job.ranks, *(job.sizes[name] for name in ("pp", "cp", "tp"))) == sizes
    assert (job.batch, job.sizes["sequence"]) == (64, 8192)
    assert job.sizes.get("micro-batch") == (2 if sizes[1] == 1 else None)


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("0: ", "7: "),
        ("[default0]:", "[default7]:"),
        ("0: [default0]:", "1: [default7]: "),
        ("", ""),
    ],
)
def test_the_labels_of_launchers_hide_nothing(first: str, last: str) -> None:
    """Steps on the last rank; memory, arguments and timers on any."""
    text = "".join(f"{first}{line}\n" for line in (ARGUMENTS + MEMORY).splitlines())
    steps = megatron((1, 1000.0), (2, 2000.0)) + TIMER
    job = read(text + "".join(f"{last}{line}\n" for line in steps.splitlines()))
    assert [each.step_s for each in job.entries] == [1.0, 2.0]
    assert (job.peak_bytes, job.timers_s, job.ranks) == (2 * 2**30, {"optimizer": 0.01844}, 512)


def test_a_time_at_the_begin_of_a_line_is_no_rank() -> None:
    lines = megatron((1, 1000.0), (2, 2000.0)).splitlines()
    text = "".join(f"10:00:0{n} {line}\n" for n, line in enumerate(lines))
    assert len(read(text).entries) == 2


def test_a_log_may_be_compressed_and_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    text = megatron(*((n, 1000.0) for n in range(1, 50))).encode()
    path.write_bytes(gzip.compress(text) + gzip.compress(megatron((50, 3000.0)).encode()))
    job, _ = read_job(path, Job())
    assert (len(job.entries), job.entries[-1].step_s) == (50, 3.0)
    path.write_bytes(gzip.compress(text)[:-40])
    assert 1 < len(read_job(path, Job())[0].entries) < 50
    path.write_bytes(gzip.compress(text)[:12] + b"\xff" * 40)
    with pytest.raises(LogError, check=names("train.log.gz")):
        read_job(path, Job())


def test_seconds_and_tflops_as_megatron_deepspeed_logs_them() -> None:
    text = (
        " iteration        7/     500 | consumed samples: 1 | "
        "elapsed time per iteration (s): 14.67 | samples per second: 69.8 | TFLOPs: 105.09 |\n"
    )
    (step,) = read(text).entries
    assert (step.last, step.step_s) == (7, 14.67)
    assert step.flops_per_s == pytest.approx(105.09e12)


def test_torchtitans_tokens_per_second_are_seconds_of_a_devices_tokens() -> None:
    lines = [
        TITAN.format(rank=r, step=s, tps=1024 * (1 + r), gib=10 + s)
        for s in (1, 10, 20)
        for r in (0, 1)
    ]
    job = read("".join(lines))
    assert [(e.first, e.last, e.step_s) for e in job.entries] == [
        (1, 1, 8),
        (2, 10, 8),
        (11, 20, 8),
    ]
    assert (job.peak_bytes, job.peak_of) == (30 * 2**30, "reserved")
    assert job.entries[0].flops_per_s == 300.5e12
    assert any("2 ranks" in remark for remark in job.remarks)


def test_the_peak_memory_of_a_job_is_the_largest_that_a_step_logged() -> None:
    steps = enumerate((12, 30, 11), start=1)
    job = read("".join(TITAN.format(rank=0, step=n, tps=1024, gib=gib) for n, gib in steps))
    assert job.peak_bytes == 30 * 2**30


def test_a_number_in_a_line_that_is_cut_off_does_not_count() -> None:
    text = megatron((1, 1000.0), (2, 1234.5))
    cut = text[: text.rindex("1234.5") + 3]
    assert [each.last for each in read(cut).entries] == [1]


def test_steps_of_the_warm_up_are_left_out_after_every_start() -> None:
    """Two starts of eight steps each: with three left out of each, ten are counted."""
    steps = [(n, 1000.0 * n) for n in range(1, 9)] + [(n, 10.0) for n in range(5, 13)]
    job = read(megatron(*steps))
    assert job.starts == (1, 5)
    found = statistics(job, 3)
    assert found.steps + found.left_out == 16
    assert found.lines == len([n for n in range(1, 9) if n in (4, 8)]) + 5


def test_a_line_that_averages_a_step_of_the_warm_up_is_left_out() -> None:
    """Lines of ten steps each, of a job that went on from step 100."""
    job = read(megatron((110, 9000.0), (120, 1000.0), (130, 1200.0), (140, 1400.0)))
    assert job.starts == (101,)
    found = statistics(job)
    assert (found.steps, found.left_out, found.median_s) == (30, 10, 1.2)
    assert found.p10_s == pytest.approx(1.04)
    assert found.p90_s == pytest.approx(1.36)


def test_a_job_of_warm_up_alone_is_refused() -> None:
    with pytest.raises(LogError, check=names("3", "5", "--warm-up 0")):
        statistics(read(megatron((1, 1.0), (2, 1.0), (3, 1.0))))


def test_a_batch_that_grows_is_said_from_the_first_to_the_last() -> None:
    text = "".join(
        megatron((n, 1000.0)).replace("size:   256", f"size: {batch:5}")
        for n, batch in enumerate((64, 128, 512), start=1)
    )
    job = read(text)
    (said,) = job.remarks
    assert_names(said, "64", "512")
    assert job.batch is None


def test_steps_by_a_clock_begin_anew_where_it_goes_back() -> None:
    """Three readings 10 s apart, and then of another clock three more 20 s apart."""
    found, _ = by_clock([(1, 100.0), (2, 110.0), (3, 120.0), (4, 5.0), (5, 25.0), (6, 45.0)])
    assert [(each.last, each.step_s) for each in found] == [(2, 10), (3, 10), (5, 20), (6, 20)]


def test_json_lines_have_steps_memory_and_rates() -> None:
    text = '{"step": 1, "step_s": 2.5, "loss": 3}\n{"step": 2, "step_s": 1.5, "peak_bytes": 7}\n'
    job = read_lines(text.splitlines(True), "steps.jsonl")
    assert [each.step_s for each in job.entries] == [2.5, 1.5]
    assert job.peak_bytes == 7
    from_0 = read_lines(
        text.replace('"step": 1', '"step": 0').replace('"step": 2', '"step": 1').splitlines(True),
        "s",
    )
    assert from_0.entries == job.entries
    cut = read_lines([*text.splitlines(True), '{"step": 3, "st'], "steps.jsonl")
    assert cut.entries == job.entries
    assert (len(job.remarks), len(cut.remarks)) == (0, 1)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", ("job.log",)),
        ("hello\n", ("job.log", "Megatron-LM", "torchtitan")),
        ('{"step": 1, "step_s": -1}\n', ("step_s", "-1", "0")),
        ('{"step": 1.5, "step_s": 1}\n', ("1", "job.log", "step", "step_s", "peak_bytes")),
        ('{"step": 1, "step_s": "1"}\n[]\n', ("1", "step_s")),
        ('{"a": 1}\n', ("simgpt run --json",)),
        ('{"steps_s": ["a"]}', ("steps_s", "a", "0")),
        ('{"steps_s": [1.0,', ("job.log", "JSON")),
    ],
)
def test_what_is_no_log_is_refused_in_a_sentence(
    text: str, named: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "job.log"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LogError, check=names(*named)):
        read_job(path, Job())
