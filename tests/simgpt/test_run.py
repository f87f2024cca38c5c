"""`simgpt run`: real ranks, started here or joined, beside their prediction."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from simgpt.running import host_load
from tests.messages import assert_names, names
from tests.simgpt.face import Said, simgpt
from tests.simgpt.test_predict import assert_tracks_in_order
from topologies.machine import machine_to_dict
from topologies.machine_files import with_settings
from workload.gpt import find_model
from workload.lowering import lower
from workload.plan import Plan
from workload.plan_text import parse_plan
from workload.program import Program

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("forked_ranks")]

WORDS = ("run", "tiny-30k", "--steps", "3", "--batch", "4", "--timeout", "250")
KEYS = {
    *("model", "plan", "plan_string", "ranks", "step_s", "steps_s", "losses", "peak_bytes"),
    *("comm_bytes", "tokens_per_s", "predicted_step_s", "predicted_peak_bytes"),
    *("matmul_forms", "asked", "device", "diverged_at_step", "stopped_at_step"),
    *("step_p10_s", "step_p90_s", "waited_share", "exported_weights", "finished", "stopped_by"),
    *("grad_norms", "evaluations", "steps"),
    *("routed_peak_bytes", "rows_over_mean"),
    *("resumed_at_step", "saved_steps", "newest_checkpoint", "unsaved"),
    *("cuda_graphs", "attention_backend", "bound_cores"),
}


def program_of(plan: str) -> Program:
    return lower(find_model("tiny-30k"), parsed(plan))


def parsed(plan: str) -> Plan:
    return parse_plan(plan, batch=4)


def test_two_ranks_join_their_prediction_without_a_remainder(tmp_path: Path) -> None:
    plan, trace = "tp=2,precision=fp32,recompute=full", tmp_path / "trace.json"
    said = simgpt(*WORDS, "--plan", plan, "-m", "frontier", "--json", "--trace", str(trace))
    assert said.status == 0, said.err
    record, program = json.loads(said.out), program_of(plan)
    assert set(record) == KEYS
    assert record["diverged_at_step"] is None is record["stopped_at_step"]
    assert 0 <= record["waited_share"] < 1
    assert 0 < record["step_p10_s"] <= record["step_s"] <= record["step_p90_s"]
    assert record["comm_bytes"] == program.comm_bytes
    assert record["predicted_peak_bytes"] == program.peak.total_bytes <= record["peak_bytes"]
    assert record["losses"][-1] < record["losses"][0]
    assert said.err.count("   loss ") == 3

    tracks = _ops_by_process(json.loads(trace.read_text(encoding="utf-8")))
    assert [title.partition(" ")[0] for title in tracks].count("predicted") >= 1
    assert {"measured rank 0", "measured rank 1"} <= set(tracks)
    ops_of = sorted(op.name for op in program.ops)
    assert all(sorted(event["name"] for event in ops) == ops_of for ops in tracks.values())
    for title, ops in tracks.items():
        if title.startswith("predicted"):
            assert_tracks_in_order(ops)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param("tp=2,z=2,pp=2", marks=pytest.mark.slow),
        pytest.param("y=2,dp=2,pp=2,zero=1,schedule=zb-h1", marks=pytest.mark.slow),
        pytest.param("tp=2,y=2,z=2", marks=pytest.mark.slow),
    ],
)
def test_a_llama_on_eight_ranks_joins_the_prediction_of_every_stage(
    plan: str, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    plan = f"{plan},mbs=2,precision=fp32"
    words = ("run", "tiny-llama-40k", "--steps", "5", "--batch", "16", "--lr", "1e-2")
    said = simgpt(*words, "--plan", plan, "-m", "frontier", "--json", "--trace", str(trace))
    assert said.status == 0, said.err
    record, gpt = json.loads(said.out), find_model("tiny-llama-40k")
    stages = parse_plan(plan, batch=16).pp
    programs = [lower(gpt, parse_plan(plan, batch=16), stage) for stage in range(stages)]
    assert record["comm_bytes"] == programs[0].comm_bytes
    peak_bytes = max(program.peak.total_bytes for program in programs)
    assert record["peak_bytes"] >= record["predicted_peak_bytes"] == peak_bytes
    assert record["losses"][-1] < record["losses"][0] - 0.1

    tracks = _ops_by_process(json.loads(trace.read_text(encoding="utf-8")))
    ops_of = [sorted(op.name for op in program.ops) for program in programs]
    for title, ops in tracks.items():
        stage = int(title.rpartition(" ")[2]) * stages // 8
        assert sorted(event["name"] for event in ops) == ops_of[stage]
    assert {f"measured rank {rank}" for rank in range(8)} <= set(tracks)
    assert {f"predicted rank {stage * 8 // stages}" for stage in range(stages)} <= set(tracks)


def _ops_by_process(trace: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    events = trace["traceEvents"]
    titles = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return {
        title: [e for e in events if e["ph"] == "X" and e["pid"] == process]
        for process, title in titles.items()
    }


def test_tuned_matmul_forms_are_run_and_join_their_prediction(tmp_path: Path) -> None:
    """On a machine on which TN is slow, every weight gradient transposes its left operand."""
    machine, trace = tmp_path / "slow.json", tmp_path / "trace.json"
    slow = with_settings("frontier", {"device.matmul.forms.TN": "1e-6"})
    machine.write_text(json.dumps(machine_to_dict(slow)), encoding="utf-8")
    plan = "z=2,precision=fp32,matmul_forms=tuned"
    said = simgpt(*WORDS, "--plan", plan, "-m", str(machine), "--json", "--trace", str(trace))
    assert said.status == 0, said.err
    record = json.loads(said.out)
    tuning = record["matmul_forms"]
    assert {(way["form"], way["chosen"]) for way in tuning["transposed"]} == {("TN", "NN")}
    assert record["peak_bytes"] >= record["predicted_peak_bytes"] > 0
    tracks = _ops_by_process(json.loads(trace.read_text(encoding="utf-8")))
    done = [sorted(event["name"] for event in ops) for ops in tracks.values()]
    assert all(each == done[0] for each in done)
    assert "m0.l0.up.grad.weight.left" in done[0]


def test_tuned_matmul_forms_on_ranks_of_a_launcher_want_a_machine_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for key, value in launched.items():
        monkeypatch.setenv(key, value)
    said = simgpt(*WORDS, "--plan", "dp=2,matmul_forms=tuned")
    assert said.status == 2
    assert_names(said.err, "-m FILE")


def test_a_run_without_a_prediction_prints_a_line_per_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_load, "WAITED", 1.0)  # other tests keep this host busy
    said = simgpt(*WORDS, "--no-predict")
    assert (said.status, said.err) == (0, "")
    assert [line[:8] for line in said.out.splitlines()[:3]] == ["step 1/3", "step 2/3", "step 3/3"]


@pytest.mark.parametrize("plan", ["dp=2", pytest.param("pp=2,mbs=2", marks=pytest.mark.slow)])
def test_a_loss_that_is_not_finite_ends_the_run_with_a_status_of_its_own(
    plan: str, tmp_path: Path
) -> None:
    """The first step is sound; its update takes every weight to infinity. The answer is written
    before the run ends."""
    out, trace = tmp_path / "run.json", tmp_path / "trace.json"
    words = ("--no-predict", "--plan", plan, "--lr", "1e30", "--json")
    said = simgpt(*WORDS, *words, "-o", str(out), "--trace", str(trace))
    assert said.status == 6, said.err
    record = json.loads(out.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert record["diverged_at_step"] == 2
    assert record["losses"][0] > 0
    assert record["losses"][1:] == [None]
    *before, last = said.err.splitlines()
    assert_names(last, "2", "3", "--lr", "1e+30")
    assert any(str(trace) in line for line in before)
    assert not trace.exists()


def test_a_validation_refuses_a_step_of_a_run_that_lost_its_loss() -> None:
    from executor.errors import DivergedError
    from executor.launching.launch import launch_training
    from executor.launching.task_specs import AdamW, Job

    plan = parse_plan("dp=1,precision=fp32", batch=4)
    lost = AdamW(lr=1e30)
    job = Job(gpt=find_model("tiny-30k"), plan=plan, steps=3, device="cpu", adamw=lost)
    with pytest.raises(DivergedError, check=names("tiny-30k", "2")):
        launch_training(job)


@pytest.fixture(scope="module")
def on_one_gpu() -> Said:
    """What two ranks without a prediction say on a machine of one GPU: one run for two tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("executor.launching.devices.accelerators", lambda: 1)
        return simgpt(*WORDS, "--no-predict", "--plan", "dp=2", "--json")


def test_without_a_prediction_the_programs_memory_stands_beside_the_allocated(
    on_one_gpu: Said,
) -> None:
    record = json.loads(on_one_gpu.out)
    assert record["predicted_step_s"] is None
    assert record["peak_bytes"] == pytest.approx(record["predicted_peak_bytes"], rel=0.1)


def test_ranks_that_a_launcher_started_join_each_other(tmp_path: Path) -> None:
    first, second = _both(tmp_path, "--plan", "dp=rest", "--no-predict")
    assert [first.status, second.status] == [0, 0], first.err + second.err
    record = json.loads(first.out)
    assert record["comm_bytes"] == program_of("dp=2").comm_bytes
    assert record["predicted_step_s"] is None
    assert (second.out, second.err) == ("", "")


def _both(folder: Path, *words: str, ranks: tuple[int, ...] = (0, 1)) -> list[Said]:
    """What ranks of a launcher's two say, forked like those of other runs."""
    port, context = _free_port(), multiprocessing.get_context("forkserver")
    files = [folder / f"{rank}.json" for rank in ranks]
    forks = [
        context.Process(target=_joining, args=(_place(rank, port), words, path))
        for rank, path in zip(ranks, files, strict=True)
    ]
    for fork in forks:
        fork.start()
    for fork in forks:
        fork.join(250)
    return [Said(**json.loads(path.read_text(encoding="utf-8"))) for path in files]


def _joining(place: dict[str, str], words: tuple[str, ...], path: Path) -> None:
    os.environ.update(place)
    said = simgpt(*WORDS, "--json", *words)
    path.write_text(json.dumps(asdict(said)), encoding="utf-8")


def _place(rank: int, port: int) -> dict[str, str]:
    """What a launcher tells a rank of two."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {"RANK": str(rank), "WORLD_SIZE": "2", **where}


def _joined(rank: int, port: int, path: str) -> subprocess.Popen[str]:
    """A rank of two in a process of its own, in which Python finds a folder's modules first."""
    words = (*WORDS, "--plan", "dp=rest", "--json", "--no-predict")
    folders = {"PYTHONPATH": os.pathsep.join([path, os.getcwd()])}
    return subprocess.Popen(
        [sys.executable, "-m", "simgpt", *words],
        env={**os.environ, **_place(rank, port), **folders},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_plan_of_more_memory_than_the_machine_has_is_refused() -> None:
    said = simgpt("run", "gpt-175b", "--no-predict", "--steps", "1")
    assert said.status == 3
    assert_names(said.sentence, "gpt-175b", "GiB")


def test_cuda_without_a_gpu_for_each_rank_is_refused_before_a_rank_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("executor.launching.devices.accelerators", lambda: 1)
    monkeypatch.setattr("executor.launching.launch.launch", pytest.fail)
    said = simgpt(*WORDS, "--no-predict", "--plan", "dp=2", "--device", "cuda")
    assert said.status == 5
    assert_names(said.sentence, "--device cuda", "2", "1")


def test_two_ranks_on_a_machine_of_one_gpu_compute_on_the_cpu_and_say_so(on_one_gpu: Said) -> None:
    assert on_one_gpu.status == 0, on_one_gpu.err
    assert json.loads(on_one_gpu.out)["device"] == "cpu"
    assert_names(on_one_gpu.err.splitlines()[0], "CPU", "2", "GPU")


# What Python runs before anything else: rank 1 runs out of memory in step 2, while rank 0 waits.
FAILING = """
import os
if os.environ["RANK"] == "1":
    import executor.job, torch
    draw = executor.job.batch_of
    def batch_of(text, gpt, batch, step, seed):
        if step == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\\nmore")
        return draw(text, gpt, batch, step, seed)
    executor.job.batch_of = batch_of
"""


@pytest.mark.slow
def test_a_rank_of_a_launcher_that_fails_says_so_and_the_others_do_not_wait(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAILING, encoding="utf-8")
    port = _free_port()
    ranks = [_joined(rank, port, str(tmp_path)) for rank in range(2)]
    (_, lost), (_, failed) = (rank.communicate(timeout=250) for rank in ranks)
    assert [rank.returncode for rank in ranks] == [5, 3]
    assert failed.count("\n") == 1
    assert_names(failed, "rank 1", "2 GiB")
    assert_names(lost.splitlines()[-1], "rank 0")


@pytest.mark.slow
def test_a_wrong_plan_is_said_once_by_rank_0_of_those_that_a_launcher_started(
    tmp_path: Path,
) -> None:
    first, second = _both(tmp_path, "--plan", "tp=3,dp=rest")
    assert [first.status, second.status] == [3, 3]
    assert first.err.count("\n") == 1
    assert_names(first.err, "tp=3", "2 devices")
    assert (second.out, second.err) == ("", "")


@pytest.mark.slow
def test_what_is_wrong_on_one_node_is_said_with_its_rank(tmp_path: Path) -> None:
    (said,) = _both(tmp_path, "--plan", "dp=rest", "--data", "/no/such/text", ranks=(1,))
    assert (said.status, said.out) == (2, "")
    assert_names(said.err, "rank 1", "/no/such/text")


@pytest.mark.parametrize(
    ("local_ranks", "bound", "named"),
    [(2, False, "nodes"), (4, True, "GPU")],  # several nodes, and a GPU for each rank
)
def test_what_rank_0_cannot_measure_is_not_predicted_and_it_says_why(
    local_ranks: int, bound: bool, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from executor.launching.launch_env import RankInfo
    from executor.launching.task_specs import Job
    from simgpt.running.calibrated import machine_for

    job = Job(gpt=find_model("tiny-30k"), plan=parsed("dp=4"), steps=1)
    info = RankInfo(0, 4, 0, local_ranks, bound=bound)
    assert machine_for(job, None, info, predicts=True, again=False) is None
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert_names(said, named, "-m FILE")


def test_a_run_takes_this_machine_as_it_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rank 0 of a launcher too; a busy host is said before."""
    from executor.calibrating import calibrate
    from executor.calibrating.conditions import Conditions
    from executor.launching.launch_env import RankInfo
    from executor.launching.task_specs import Job
    from simgpt.running.calibrated import machine_for

    machine = machine_to_dict(with_settings("frontier", {}))
    machine["profile"] = {"provenance": Conditions.now().as_provenance()}
    monkeypatch.setenv("SIMGPT_CACHE", str(tmp_path))
    monkeypatch.setattr(calibrate, "calibrate", lambda *_, **__: machine)
    job = Job(gpt=find_model("tiny-30k"), plan=parsed("dp=2"), steps=1, device="cpu")
    for info in (None, RankInfo(0, 2, 0, 2)):
        found = machine_for(job, None, info, predicts=True, again=False)
        assert found is not None
        assert found.name == "frontier"
    assert machine_for(job, None, RankInfo(1, 2, 1, 2), predicts=True, again=False) is None


@pytest.mark.slow
def test_an_interrupted_run_keeps_its_summary_its_json_and_its_trace(tmp_path: Path) -> None:
    out, trace = tmp_path / "run.json", tmp_path / "trace.json"
    words = ["run", "tiny-30k", "--steps", "1000000", "--batch", "4", "--no-predict", "--json"]
    run = subprocess.Popen(
        [sys.executable, "-m", "simgpt", *words, "-o", str(out), "--trace", str(trace)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr is not None
    while "step" not in run.stderr.readline():
        pass
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=250)
    assert run.returncode == 130
    assert_names(err, "Ctrl-C")
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["stopped_at_step"] == len(record["steps_s"])
    ops = _ops_by_process(json.loads(trace.read_text(encoding="utf-8")))["measured rank 0"]
    assert len(ops) == len(lower(find_model("tiny-30k"), parsed("dp=1")).ops)
