"""A sample log of every format: which steps, memory, batch and sizes are read of it. Sources of the
lines: `validation/jobs/log_formats.toml`; the numbers are invented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.messages import assert_names
from validation.jobs.errors import LogError
from validation.jobs.log_formats import formats
from validation.jobs.log_lines import read_log
from validation.jobs.measured_job import MeasuredJob, statistics
from validation.jobs.reading import read_job
from validation.jobs.step_lines import Job

SAMPLES = Path(__file__).parent / "samples"
ASKED = Job(batch=64, sequence=4096, devices=16)  # of the question; the log's own comes first
GIB = 2.0**30
# The kind, steps, median seconds after the warm-up, TFLOP/s, memory in GiB and of what, batch.
FORMATS = {
    "primus-megatron.log": ("Megatron-LM", 10, 9.438, 433.7, (145.4, "device"), 128),
    "primus-torchtitan.log": ("Megatron-LM", 10, 19.392006, 347.9, (145.4, "reserved"), 128),
    "nemo2.log": ("NeMo", 11, 9.465, 392.7, (50.23, "allocated"), 128),
    "nemo1.log": ("NeMo", 10, 9.47, None, None, 128),
    "torchtitan.log": ("torchtitan", 10, 16384 / 6008, 300.5, (60.1, "reserved"), 16),
    "nanotron.log": ("nanotron", 10, 9.47, 702.0, (50.0, "allocated"), 128),
    "deepspeed.log": ("DeepSpeed", 10, 128 / 13.645, None, (50.25, "allocated"), 128),
    "deepspeed-pipeline.log": ("DeepSpeed's pipeline", 100, 9.45, None, None, None),
    "olmo.log": ("OLMo", 9, 1 / 0.10675, None, (53930e6 / GIB, "allocated"), None),
    "olmo-core.log": ("OLMo-core", 9, 1 / 0.10675, 702.75, (50.23, "allocated"), None),
    "trainer-bar.log": ("a progress bar", 40, 9.43, None, None, 128),
    "trainer.log": ("the Trainer of transformers", 40, 9.43, None, None, 128),
    "axolotl.log": ("the Trainer of transformers", 40, 9.43, None, (50.23, "allocated"), 128),
    "mlperf.log": ("MLPerf", 240, 9.4345, None, None, 128),
    "maxtext.log": ("MaxText", 10, 9.47, 702.123, None, None),
    "internevo.log": ("InternEvo", 10, 16384 / 4103.45, 189.8, None, None),
    "torchtune.log": ("torchtune", 10, 16384 / 4097.5, None, (59.9, "allocated"), None),
    "composer.log": ("Composer", 10, 1 / 0.1067, None, (53.9303e9 / GIB, "allocated"), None),
}


def read(text: str, asked: Job = ASKED) -> MeasuredJob:
    return read_log(lambda *marks, **most: text.splitlines(), "train.log", asked)


def sample(name: str) -> str:
    return (SAMPLES / name).read_text(encoding="utf-8")


def step_s(job: MeasuredJob) -> float:
    return statistics(job).median_s


@pytest.mark.parametrize("name", FORMATS)
def test_the_fields_of_a_format_are_read_in_their_units(name: str) -> None:
    kind, steps, median_s, tflops, peak, batch = FORMATS[name]
    job, _ = read_job(SAMPLES / name, ASKED)
    found = statistics(job)
    assert job.kind == f"log of {kind}"
    assert found.steps + found.left_out == pytest.approx(steps, abs=5 * (name == "trainer-bar.log"))
    assert found.median_s == pytest.approx(median_s, rel=0.012 if "bar" in name else 1e-4)
    assert found.flops_per_s == (None if tflops is None else pytest.approx(tflops * 1e12))
    assert job.batch == batch
    assert (job.peak_bytes or 0.0) / GIB == pytest.approx(
        0.0 if peak is None else peak[0], rel=1e-3
    )
    assert job.peak_of == ("allocated" if peak is None else peak[1])


def test_every_format_has_a_sample() -> None:
    assert {each.name for each in formats()} == {kind for kind, *_ in FORMATS.values()}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("label", ["3: ", "[default3]:", "[rank3]: ", "[1,3]<stdout>:", "\x1b[0m"])
def test_labels_and_colours_hide_no_format(name: str, label: str) -> None:
    text = sample(name)
    labelled = "".join(f"{label}{line}\n" for line in text.splitlines())
    assert step_s(read(labelled)) == step_s(read(text))


@pytest.mark.parametrize("name", ["olmo.log", "olmo-core.log", "composer.log"])
def test_steps_of_several_lines_are_told_apart_where_ranks_take_turns(name: str) -> None:
    lines = sample(name).splitlines()
    turns = [f"{rank}: {line}" for line in lines for rank in (0, 1)]
    assert step_s(read("\n".join(turns))) == step_s(read("\n".join(lines)))


def test_the_state_of_a_trainer_has_the_mean_of_its_run(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(sample("trainer_state.json"), encoding="utf-8")
    job, _ = read_job(path, ASKED)
    (entry,) = job.entries
    assert (entry.first, entry.last, entry.step_s) == (1, 40, 377.2 / 40)
    assert statistics(job).steps == 40


def test_lines_of_llama_factory_are_timed_by_their_clock() -> None:
    job, _ = read_job(SAMPLES / "llama-factory.jsonl", ASKED)
    assert step_s(job) == pytest.approx(9.43, rel=0.012)


def test_an_evaluation_is_no_step() -> None:
    """torchtitan's evaluation takes a line like a step's, with the rate of forward passes."""
    job = read(sample("torchtitan.log"))
    assert (len(job.entries), job.starts) == (10, (1,))
    assert (job.ranks, job.sizes["sequence"]) == (8, 8192)


def test_an_evaluation_at_a_step_that_is_not_logged_is_none() -> None:
    lines = sample("torchtitan.log").splitlines()
    steps = [line for line in lines if "validate" not in line]
    (evaluation,) = [line for line in lines if "validate" in line]
    between = evaluation.replace("step:  5", "step: 15")
    late = [line.replace("step:  6", "step: 20") for line in steps if "step:  6" in line]
    job = read("\n".join([*steps, between, *late]))
    assert [each.last for each in job.entries][-2:] == [10, 20]
    assert job.remarks == read("\n".join([*steps, *late])).remarks


def test_a_rank_whose_lines_follow_anothers_is_no_restart() -> None:
    one = [line for line in sample("nemo2.log").splitlines() if line.startswith(" 0:")]
    other = [line.replace(" 0:", " 1:", 1) for line in one]
    job = read("\n".join([*one, *other]))
    assert (len(job.entries), job.starts) == (11, (1,))


def test_a_rate_of_one_step_is_that_of_no_other_step() -> None:
    job = read(sample("deepspeed.log"))
    assert [(each.first, each.last) for each in job.entries][:2] == [(10, 10), (20, 20)]


def test_of_several_jobs_in_a_file_the_last_counts() -> None:
    """The second job has half the batch, and steps of half the time."""
    first = sample("torchtitan.log")
    second = first.replace("global batch size 16", "global batch size 8")
    job = read(first + second)
    assert step_s(job) == pytest.approx(step_s(read(first)) / 2)
    assert len(job.entries) == 10
    assert len(read(first + first).entries) == 20


def test_a_broken_line_is_left_out_and_counted() -> None:
    lines = sample("deepspeed.log").splitlines()
    lines[9] = lines[9].replace("CurrSamplesPerSec=", "CurrSamplesPerSec=worker-1: [20")
    job = read("\n".join(lines))
    assert len(job.entries) == 9
    (said,) = {*job.remarks} - {*read(sample("deepspeed.log")).remarks}
    assert_names(said, "1")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("number", ["1e400", "0", "9" * 30])
def test_a_number_that_no_time_has_is_none(name: str, number: str) -> None:
    """The steps, the rates and the memory of a log in turn, each so often as it stands there."""
    text = sample(name)
    for value in set(re.findall(r"\d+\.\d+", text)):
        try:
            job = read(text.replace(value, number))
        except LogError:
            continue
        assert all(0 < each.step_s < 1e9 for each in job.entries)
        assert job.peak_bytes is None or 0 < job.peak_bytes < float("inf")


def test_a_bar_that_has_just_begun_is_not_broken() -> None:
    text = sample("trainer-bar.log")
    assert " 0/40 [00:00<" in text
    begun = re.sub(r"[^\r\n]* 0/40 [^\r\n]*", "", text)
    assert read(text).remarks == read(begun).remarks


def test_broken_lines_of_json_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    good = [f'{{"step": {n}, "step_s": 1.5}}\n' for n in range(1, 9)]
    path.write_text("".join([*good[:4], '{"step": 5, "ste{"step": 5}\n', "[]\n", *good[4:]]))
    job, _ = read_job(path, ASKED)
    assert len(job.entries) == 8
    (said,) = job.remarks
    assert_names(said, "2")


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ('{"step": %d, "time_metrics/end_to_end(s)": 2.5, "throughput(tps)": 1}', 2.5),
        ('{"step": %d, "throughput(tps)": 4096.0}', 4.0),
        ('{"global_step": %d, "train_step_timing in s": 9.4}', 9.4),
        ('{"iteration": %d, "elapsed_time_per_iteration_ms": 9400.0}', 9.4),
        ('{"_step": %d, "throughput(tps)": 4096.0}', 4.0),
        ('{"step": %d, "step_s": 9.4, "loss": NaN, "grad_norm": Infinity}', 9.4),
    ],
)
def test_json_lines_are_read_by_the_names_of_frameworks(
    line: str, seconds: float, tmp_path: Path
) -> None:
    """64 sequences of 4,096 tokens on 16 devices are 16,384 tokens of each."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f"{line % n}\n" for n in range(1, 4)))
    assert read_job(path, ASKED)[0].entries[0].step_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("key", "unit", "kind"),
    [
        ("peak_bytes", 1, "allocated"),
        ("max_memory_allocated", 1, "allocated"),
        ("peak_memory_alloc", GIB, "allocated"),
        ("peak_memory_active", GIB, "allocated"),
        ("memory/max_active(GiB)", GIB, "allocated"),
        ("memory/max_reserved(GiB)", GIB, "reserved"),
    ],
)
def test_the_highest_peak_of_json_lines_is_read_in_its_unit(
    key: str, unit: float, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [f'{{"step": {n}, "step_s": 1.5, "{key}": {40 + n % 3}}}\n' for n in range(1, 5)]
    path.write_text("".join(lines))
    job, _ = read_job(path, ASKED)
    assert (job.peak_bytes, job.peak_of) == (42 * unit, kind)


def test_a_time_that_is_no_number_is_no_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "step_s": NaN}\n')
    with pytest.raises(LogError, match="step_s"):
        read_job(path, ASKED)


def test_a_state_with_a_gradient_of_no_number_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(sample("trainer_state.json").replace('"grad_norm": 1.1', '"grad_norm": NaN'))
    assert step_s(read_job(path, ASKED)[0]) == pytest.approx(9.43)


def test_json_lines_of_several_ranks_are_those_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    lines = [f'{r}: {{"step": {n}, "step_s": {1 + r}.5}}\n' for n in range(1, 9) for r in (0, 1)]
    path.write_text("".join(lines))
    job, _ = read_job(path, ASKED)
    assert [each.step_s for each in job.entries] == [1.5] * 8


def test_memory_that_is_no_peak_is_not_taken_for_one() -> None:
    """nanotron logged what was allocated at the end of a step, and the most that was reserved."""
    line = (
        "05/10 10:00:0{n} [INFO|DP=0|PP=0|TP=0]: iteration: {n} / 9 | elapsed_time_per_iteration_ms"
        ": 2.4{n}K | cuda_memory_allocated: 20.1G | cuda_max_memory_reserved: 57.7G | lr: 1\n"
    )
    job = read("".join(line.format(n=n) for n in range(1, 9)))
    assert job.peak_of == "reserved"
    assert job.peak_bytes == pytest.approx(57.7e9)


def test_an_old_bar_that_is_one_line_is_read_to_its_end(tmp_path: Path) -> None:
    """Carriage returns end lines, also where a block of the file ends."""
    path = tmp_path / "train.log"
    text = sample("nemo1.log")
    path.write_bytes((text.split("\n")[3] * 2000).encode())
    assert read_job(path, ASKED)[0].entries[-1].step_s > 9.4
