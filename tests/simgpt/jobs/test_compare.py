"""`simgpt compare` as people and programs read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.messages import assert_names
from tests.simgpt.face import assert_golden, simgpt

ROOT = Path(__file__).resolve().parents[3]
JOBS = "tests/validation/jobs"
MODEL = ("llama-3.1-8b", "-m", "8x8xH100,8xNDR", "-n", "64")
MEGATRON = (*MODEL, "--stack", "megatron-core", "--plan", "tp=2,dp=rest,mbs=1,sp=true")
TITAN = (*MODEL, "--stack", "torchtitan", "--plan", "fsdp=true,dp=rest,mbs=1", "--batch", "64")
TINY = ("tiny-2m", "-m", "host", "--plan", "dp=2,precision=fp32", "--batch", "16")


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "compare-megatron.txt",
            ("docs/samples/megatron-lm-invented.log", *MEGATRON, "--batch", "256"),
        ),
        ("compare-torchtitan.txt", ("docs/samples/torchtitan-invented.log", *TITAN)),
        ("compare-run.txt", (f"{JOBS}/tiny-2m-run.json", *TINY)),
        ("compare-trace.txt", (f"{JOBS}/tiny-2m-rank0-shrunk.json.gz", *TINY)),
    ],
)
def test_a_comparison_reads_as_its_golden_file(name: str, words: tuple[str, ...]) -> None:
    said = simgpt("compare", *words)
    assert (said.status, said.err) == (0, "")
    assert max(map(len, said.out.splitlines())) <= 100
    assert_golden(name, said.out)


def test_the_json_has_the_prediction_of_predict_and_the_measured_step() -> None:
    told = json.loads(simgpt("predict", *MEGATRON, "--batch", "256", "--json").out)
    log = "docs/samples/megatron-lm-invented.log"
    found = json.loads(simgpt("compare", log, *MEGATRON, "--batch", "256", "--json").out)
    predicted = found["predicted"]
    assert {key: told[key] for key in predicted if key != "anatomy"} == {
        key: value for key, value in predicted.items() if key != "anatomy"
    }
    measured = found["measured"]
    assert (measured["steps"], measured["left_out"]) == (11, 5)
    assert found["error"] == pytest.approx(told["step_s"] / measured["median_s"] - 1)
    assert found["within_range"] is (
        told["low_step_s"] <= measured["median_s"] <= told["high_step_s"]
    )
    assert found["asked"]["stack"] == "megatron-core"


def test_another_batch_than_the_jobs_is_said_before_all_else() -> None:
    log = "docs/samples/megatron-lm-invented.log"
    found = json.loads(simgpt("compare", log, *MEGATRON, "--batch", "128", "--json").out)
    (difference,), (cause,) = found["differences"], found["causes"]
    assert_names(difference, "batch", "256 sequences", "128")
    assert difference in cause


def test_a_batch_of_sequences_that_are_split_over_devices_is_the_users() -> None:
    log, plan = "docs/samples/megatron-lm-invented.log", "tp=2,cp=2,dp=rest,mbs=1,sp=true"
    words = (*MODEL, "--stack", "megatron-core", "--plan", plan, "--batch", "256", "--json")
    assert json.loads(simgpt("compare", log, *words).out)["differences"] == []


def test_every_size_that_the_log_contradicts_is_named(tmp_path: Path) -> None:
    log = (ROOT / "docs/samples/megatron-lm-invented.log").read_text(encoding="utf-8")
    sizes = {"num_layers": 32, "hidden_size": 5120, "seq_length": 4096, "micro_batch_size": 2}
    path = tmp_path / "train.log"
    path.write_text(
        "0: using world size: 512, data-parallel size: 32, context-parallel size: 1, "
        "tensor-model-parallel size: 4, pipeline-model-parallel size: 4\n"
        + "".join(f"0:   {name} {'.' * 20} {size}\n" for name, size in sizes.items())
        + "".join(f"63: {line}\n" for line in log.splitlines()),
        encoding="utf-8",
    )
    found = json.loads(simgpt("compare", str(path), *MEGATRON, "--batch", "256", "--json").out)
    named = [
        ("512", "64"),
        ("tp", "4", "2"),
        ("pp", "4", "1"),
        ("hidden", "5,120", "4,096"),
        ("sequence", "4,096", "8,192"),
        ("micro-batch", "2", "1"),
    ]
    for difference, words in zip(found["differences"], named, strict=True):
        assert_names(difference, *words)
    assert found["measured"]["sizes"]["layers"] == 32


def test_sizes_of_sequences_that_are_split_over_devices_are_the_users(tmp_path: Path) -> None:
    log = (ROOT / "docs/samples/megatron-lm-invented.log").read_text(encoding="utf-8")
    path = tmp_path / "train.log"
    world = "using world size: 64, context-parallel size: 2, tensor-model-parallel size: 2\n"
    path.write_text(f"{world}  seq_length ..... 8192\n{log}", encoding="utf-8")
    plan = ("--plan", "tp=2,cp=2,dp=rest,mbs=1,sp=true", "--batch", "256", "--json")
    found = json.loads(simgpt("compare", str(path), *MEGATRON[:-2], *plan).out)
    assert found["differences"] == []


def test_timers_stand_beside_the_parts_that_they_time() -> None:
    log = "docs/samples/megatron-lm-invented.log"
    words = ("--batch", "256", "--json")
    found = json.loads(simgpt("compare", log, *MEGATRON, *words).out)
    step_s, parts = found["predicted"]["step_s"], found["predicted"]["breakdown_s"]
    assert found["predicted_timers_s"] == {
        "forward-backward": pytest.approx(step_s - parts["optimizer"]),
        "optimizer": parts["optimizer"],
    }
    plan = f"{MEGATRON[-1]},overlap=none"
    assert (
        json.loads(simgpt("compare", log, *MEGATRON[:-1], plan, *words).out)["predicted_timers_s"]
        == {}
    )


def test_a_timer_that_no_predicted_part_matches_is_said_to_be_the_logs_own(tmp_path: Path) -> None:
    log = (ROOT / "docs/samples/megatron-lm-invented.log").read_text(encoding="utf-8")
    path = tmp_path / "train.log"
    path.write_text(log.replace("optimizer ..", "forward-compute .."), encoding="utf-8")
    said = simgpt("compare", str(path), *MEGATRON, "--batch", "256")
    (line,) = [line for line in said.out.splitlines() if line.startswith("forward-compute")]
    assert line.split()[1:] == ["18.4", "ms", "-", "-"]


def test_the_warm_up_can_be_chosen() -> None:
    log = "docs/samples/megatron-lm-invented.log"
    words = (*MEGATRON, "--batch", "256", "--json", "--warm-up")
    found = json.loads(simgpt("compare", log, *words, "1").out)
    assert (found["measured"]["steps"], found["measured"]["left_out"]) == (15, 1)
    said = simgpt("compare", log, *words, "16")
    assert (said.status, "--warm-up 0" in said.sentence) == (2, True)


@pytest.mark.parametrize("log", ["no-such.log", "docs", "README.md"])
def test_what_is_no_log_is_refused_in_a_sentence(log: str) -> None:
    said = simgpt("compare", log, *TINY)
    assert said.status == 2
    assert log in said.sentence


def test_a_rank_that_the_plan_does_not_have_has_no_parts(tmp_path: Path) -> None:
    mark = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 9}
    trace = {"distributedInfo": {"rank": 7, "world_size": 8}, "traceEvents": [mark]}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace), encoding="utf-8")
    found = json.loads(simgpt("compare", str(path), *TINY, "--json").out)
    assert found["predicted"]["anatomy"] is None
    assert_names(found["measured"]["remarks"][-1], "rank 7", "2 ranks")
