"""Calibration: what is sampled, the machine made of it, and the file that is kept of it."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from executor.calibrating import calibrate as calibration
from executor.calibrating.calibrate import cached, calibrate
from executor.calibrating.host_machine import machine_document
from executor.calibrating.message_benchmarks import messages
from executor.calibrating.microbenchmarks import Sample, collectives, kernels
from executor.calibrating.sample_values import BELOW
from executor.groups import ProcessGroups
from executor.launching.launch_env import RankInfo
from executor.launching.task_specs import AdamW, Calibrated, Calibration
from executor.memory.device_memory import host_bytes
from executor.rank_context import LEAST_SCRATCH_BYTES, SCRATCH_BYTES, RankContext
from simulator.predict import predict
from tests.messages import assert_names
from topologies.machine import Machine, machine_from_dict, machine_to_dict
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.grid import Grid
from workload.kinds import COLLECTIVES
from workload.lowering import lower
from workload.op import STEP
from workload.plan_text import parse_plan
from workload.splits.plan_values import PRECISIONS

TASK = Calibration(precisions=("fp32",), quick=True)
MADE = machine_to_dict(load_machine("perlmutter"))
PLANS = (
    "dp=1",
    "tp=2,y=2,z=2,dp=2,recompute=full",
    "tp=2,overlap=none",
    "y=2,z=2,mbs=1",
    "z=4,dp=2,mbs=2",
    "tp=2,sp=true,attention=unfused",
    "pp=2,mbs=2",
    "pp=2,mbs=2,dp=2,zero=3,schedule=zb-h1",
)


@cache
def samples(precision: str, *, quick: bool = True) -> tuple[Sample, ...]:
    """All kernels that a calibration samples."""
    return tuple(kernels(precision, quick=quick))


@cache
def sampled(precision: str, quick: bool) -> set[str]:
    """The kinds of kernels that a calibration samples."""
    every = samples(precision) if quick else samples(precision, quick=False)
    return {sample.key for sample in every}


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "precision",
    [pytest.param(p, marks=[pytest.mark.slow] if p != "fp32" else []) for p in PRECISIONS],
)
@pytest.mark.parametrize("plan", PLANS)
def test_every_kind_of_op_in_a_program_has_a_sample(plan: str, precision: str, quick: bool) -> None:
    gpt = replace(find_model("tiny-30k"), dropout=0.1 if "unfused" in plan else 0.0)
    program = lower(gpt, parse_plan(f"{plan},precision={precision}", batch=16))
    wanted = {op.kind for op in program.ops if not op.communicates} - {"fence"}
    assert wanted <= sampled(precision, quick)


def test_every_kind_of_op_of_latent_attention_has_a_sample() -> None:
    latent = find_model("tiny-llama-40k").changed(kv_heads=0, q_rank=8, kv_rank=8, rope_width=2)
    program = lower(latent, parse_plan("tp=2,precision=fp32", batch=16))
    wanted = {op.kind for op in program.ops if not op.communicates} - {"fence"}
    assert wanted <= sampled("fp32", quick=True)


@pytest.mark.parametrize("quick", [True, False])
def test_every_matmul_form_is_measured_on_the_same_shapes(quick: bool) -> None:
    shapes: dict[float, set[tuple[float, ...]]] = {}
    for sample in takewhile(lambda sample: sample.key == "matmul", kernels("fp32", quick=quick)):
        shape = tuple(sample.features[key] for key in "mnk")
        shapes.setdefault(sample.features["form"], set()).add(shape)
    first, second, third = shapes.values()
    assert first == second == third


def test_the_transposes_that_other_matmul_forms_take_have_samples() -> None:
    sizes = [s.features["nbytes"] for s in samples("fp32") if s.key == "transpose"]
    assert sizes == sorted(set(sizes))
    assert len(sizes) == 3


@pytest.mark.parametrize("ranks", [1, 2, 6])
def test_collectives_are_sampled_in_every_group_size_that_divides_the_ranks(ranks: int) -> None:
    seen = {(sample.key, sample.features["ranks"]) for sample in collectives(ranks, quick=True)}
    groups = [float(size) for size in range(2, ranks + 1) if ranks % size == 0]
    assert seen == {(kind, size) for kind in COLLECTIVES for size in groups}


def test_a_matmul_runs_before_each_collective_as_in_a_step() -> None:
    for sample in collectives(2, quick=True):
        program = sample.program(3)
        assert [op.kind for op in program.ops] == ["matmul", sample.key] * 3
        assert sample.meets
        assert program.waits == [()] * 6


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_pairs_of_ranks_take_turns_at_messages(ranks: int) -> None:
    every = [list(messages(rank, ranks, quick=True)) for rank in range(ranks)]
    assert {len(samples) for samples in every} == ({0} if ranks % 2 else {4})
    for samples in zip(*every, strict=True):
        programs = [sample.program(3) for sample in samples]
        for one, other in zip(programs[::2], programs[1::2], strict=True):
            pairs = list(zip(one.ops[::2], other.ops[::2], strict=True))
            kinds = [(mine.kind, theirs.kind) for mine, theirs in pairs]
            assert kinds == [("send", "recv"), ("recv", "send"), ("send", "recv")]
            assert all(mine.group == theirs.group for mine, theirs in pairs)


def test_a_sample_repeats_its_op_on_operands_that_take_turns() -> None:
    sample = samples("fp32")[0]
    program = sample.program(4)
    assert [op.kind for op in program.ops] == ["matmul"] * 4
    assert len({op.reads for op in program.ops}) == 4
    assert len({op.name for op in program.ops}) == 4


def made_up(ranks: int, seconds_per_byte: float = 1e-9) -> Calibrated:
    """What a calibration of a machine of 1 GFLOP/s and 1 GB/s would have measured."""
    tables: dict[str, list[dict[str, float]]] = {}
    for sample in samples("fp32"):
        work = sample.features.get("nbytes", 1e6) * seconds_per_byte
        if sample.key == "matmul":
            work = 2e-9 * sample.features["m"] * sample.features["n"] * sample.features["k"]
        row = {"ranks": float(ranks), **sample.features, "seconds": work}
        tables.setdefault(f"{sample.key}@fp32", []).append(row)
    moved: dict[str, list[dict[str, float]]] = {}
    for sample in (*collectives(ranks, quick=True), *messages(0, ranks, quick=True)):
        row = {**sample.features, "seconds": sample.features["bytes"] * seconds_per_byte}
        moved.setdefault(sample.key, []).append(row)
    return Calibrated(
        kernels=tables,
        collectives=moved,
        overlap=0.5,
        device="made up",
        memory_bytes=2**29,
        torch="2",
        reserve_bytes=2**20,
    )


@cache
def machine_of(ranks: int) -> Machine:
    document = machine_document(made_up(1), made_up(ranks), ranks, "today")
    return machine_from_dict(json.loads(json.dumps(document)), "made up")


def test_made_up_tables_make_a_machine_that_predicts() -> None:
    machine = machine_of(2)
    assert machine.devices == 2
    assert machine.device.memory_bytes == 2**29
    assert machine.device.usable_bytes == 2**29 - 2**20
    assert machine.device.peak_flops_per_s["fp32"] == pytest.approx(1e9)
    for text in ("dp=2", "dp=2,zero=3", "pp=2,mbs=1"):
        plan = parse_plan(f"{text},precision=fp32", batch=4)
        prediction = predict(find_model("tiny-30k"), plan, machine)
        least_s = prediction.model_flops_per_s_per_device * prediction.step_s / 1e9
        assert prediction.step_s > 0.5 * least_s > 0


def test_compute_that_stands_still_beside_collectives_makes_a_machine_that_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second of compute, one of collectives, and 2.5 for both at once: more than all of it."""
    seconds = iter((1.0, 1.0, 2.5))
    timing = importlib.import_module("executor.calibrating.calibrate_worker")
    monkeypatch.setattr(timing, "overlapped", lambda *_: range(3))
    monkeypatch.setattr(timing, "_play", lambda *_: next(seconds))
    monkeypatch.setattr(timing, "_mean", lambda value: value)
    place = SimpleNamespace(grid=SimpleNamespace(ranks=2))
    share = timing._compute_share(TASK, place, None)
    all_ranks = replace(made_up(2), overlap=share)
    machine = machine_from_dict(machine_document(made_up(1), all_ranks, 2, "today"), "made up")
    assert machine.software.compute_share == 0.99


@pytest.mark.parametrize(
    ("compute_s", "network_s", "both_s", "share"),
    [
        (4.0, 1.0, 4.5, 0.5),
        (1.0, 4.0, 4.25, 0.25),
        (2.0, 3.0, 2.75, 0.0),
    ],
)
def test_the_compute_share_is_what_both_take_beyond_the_longer_over_the_shorter(
    monkeypatch: pytest.MonkeyPatch,
    compute_s: float,
    network_s: float,
    both_s: float,
    share: float,
) -> None:
    seconds = iter((compute_s, network_s, both_s))
    timing = importlib.import_module("executor.calibrating.calibrate_worker")
    monkeypatch.setattr(timing, "overlapped", lambda *_: range(3))
    monkeypatch.setattr(timing, "_play", lambda *_: next(seconds))
    monkeypatch.setattr(timing, "_mean", lambda value: value)
    place = SimpleNamespace(grid=SimpleNamespace(ranks=2))
    assert timing._compute_share(TASK, place, None) == share


def test_a_tenth_of_the_meetings_at_either_end_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of thrice ten collectives three take 1 s and three 50 s; the others take 2 s, and so does
    one on average. Ops that are no collectives do not count."""
    timing = importlib.import_module("executor.calibrating.calibrate_worker")
    collective, matmul = SimpleNamespace(is_collective=True), SimpleNamespace(is_collective=False)
    lengths_s = (50.0, *(2.0,) * 8, 1.0)
    spans = [SimpleNamespace(op=collective, start_s=7.0, end_s=7.0 + s) for s in lengths_s]
    spans.append(SimpleNamespace(op=matmul, start_s=0.0, end_s=9.0))
    recorder = SimpleNamespace(timeline=lambda *_: SimpleNamespace(spans=spans))
    monkeypatch.setattr(timing, "_prepared", lambda *_: (None, None, None))
    monkeypatch.setattr(timing, "recorder_for", lambda *_: recorder)
    monkeypatch.setattr(timing, "play", lambda *_: {})
    monkeypatch.setattr(timing.dist, "barrier", lambda: None)
    place = SimpleNamespace(device=None, rank=0)
    assert timing._meetings(None, 10, place, None) == 2.0


def test_a_calibration_is_kept_and_not_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SIMGPT_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "calibrate", lambda *_, **__: MADE)
    said: list[str] = []
    first = cached(TASK, 2, said.append, announce=said.append)
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text(encoding="utf-8")) == MADE
    assert_names(said[0], "2 rank")
    monkeypatch.setattr(calibration, "calibrate", pytest.fail)
    assert cached(TASK, 2, pytest.fail, announce=pytest.fail) == first


def test_a_calibration_writes_what_a_rank_s_device_holds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Measured for real, by one rank, of a single sample; and by the same words on a GPU."""
    timing = importlib.import_module("executor.calibrating.calibrate_worker")
    sample = samples("fp32")[0]
    one = ("kernels", "matmul@fp32", {"ranks": 1.0, **sample.features}, sample)
    monkeypatch.setattr(timing, "_samples", lambda *_: iter([one]))
    task = replace(TASK, device="cpu")
    found = Calibrated(**timing.measure(task, RankInfo.local(0, 1, tmp_path), lambda _: None))
    assert found.memory_bytes == host_bytes()
    machine = machine_from_dict(machine_document(None, found, 1, "today"), "measured")
    assert machine.device.memory_bytes == host_bytes()

    assert timing.memory_bytes(torch.device("cpu"), 4) == host_bytes() // 4
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1, 80 << 30))
    assert timing.memory_bytes(torch.device("cuda"), 4) == 80 << 30


def test_other_ranks_precision_or_threads_are_another_calibration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SIMGPT_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "calibrate", lambda *_, **__: MADE)
    tasks = [
        TASK,
        Calibration(precisions=("bf16",), quick=True),
        Calibration(precisions=("fp32",), quick=True, threads=2),
    ]
    for task in tasks:
        for count in (1, 2):
            cached(task, count, lambda _: None)
    assert len(list(tmp_path.glob("*.json"))) == 6


def test_after_an_update_of_torch_a_machine_is_calibrated_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SIMGPT_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "calibrate", lambda *_, **__: MADE)
    for version in ("2.8.0", "2.9.0", "2.9.0"):
        monkeypatch.setattr("importlib.metadata.version", {"torch": version}.__getitem__)
        cached(TASK, 1, lambda _: None)
    assert len(list(tmp_path.glob("*.json"))) == 2


@pytest.mark.slow
@pytest.mark.distributed
def test_a_quick_calibration_of_this_machine_predicts_every_tiny_model() -> None:
    said: list[str] = []
    machine = machine_from_dict(calibrate(TASK, 1, said.append, one_rank=True), "calibration")
    plan = parse_plan("dp=1,precision=fp32", batch=2)
    times = [predict(find_model(f"tiny-{size}"), plan, machine).step_s for size in ("1m", "25m")]
    assert 0 < times[0] < times[1]
    assert_names(said[-1], "1 rank")


def test_kernels_are_measured_in_the_slices_of_the_step_they_come_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timing = importlib.import_module("executor.calibrating.calibrate_worker")
    held: list[int] = []

    def played(_: Sample, count: int, place: RankContext, *others: object) -> list[float]:
        held.append(place.scratch_bytes)
        return [1.0, 0.8, 1.2]

    monkeypatch.setattr(timing, "_timings", played)
    monkeypatch.setattr(timing, "_mean", float)
    place = RankContext(grid=Grid(dp=1), rank=0, device=torch.device("cpu"), adamw=AdamW())
    wide = [sample for sample in samples("fp32") if sample.key == "gelu"][-1]
    least = LEAST_SCRATCH_BYTES["cpu"]
    assert wide.peak_bytes // 128 > SCRATCH_BYTES["cpu"]
    spreads: list[float] = []
    for peak_bytes in (128 * (least + 1), 1, 0):
        each = replace(wide, peak_bytes=peak_bytes)
        assert timing.seconds_of(each, place, ProcessGroups(0, 1.0), 0.1, spreads) == 1.0
    assert spreads == pytest.approx([0.5, 0.5, 0.5])  # 1.2 is half as much again as 0.8
    assert held[::2] == [least + 1, least, SCRATCH_BYTES["cpu"]]


class Clock:
    """A GPU's event that only tells when it was recorded."""

    said: ClassVar[list[str]] = []

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.said.append("event")

    def synchronize(self) -> None:
        self.said.append("awaited")

    def elapsed_time(self, _: Clock) -> float:
        return 250.0


def test_a_gpu_is_timed_by_its_own_clock_while_its_host_is_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timing = importlib.import_module("executor.calibrating.calibrate_worker")
    said = Clock.said
    said.clear()
    monkeypatch.setattr(torch.cuda, "Event", Clock)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: said.append("idle"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: said.append(f"sleeps {cycles}"))
    with timing._timed(torch.device("cuda"), 50) as seconds:
        said.append("ops")
    assert said == ["idle", "sleeps 10000000", "event", "ops", "event", "awaited"]
    assert seconds == [0.25]


def test_the_host_that_issues_a_gpus_ops_is_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = importlib.import_module("executor.calibrating.calibrate_worker")
    monkeypatch.setattr(timing, "_mean", float)
    moments = iter([0.0, 1.0, 5.0, 9.0, 20.0, 23.0])
    monkeypatch.setattr(timing, "play", lambda *_: None)
    monkeypatch.setattr(timing, "_prepared", lambda *_: (None, None, None))
    monkeypatch.setattr(timing.dist, "barrier", lambda: None)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    place = RankContext(grid=Grid(dp=1), rank=0, device=torch.device("cpu"), adamw=AdamW())
    sample = samples("fp32")[0]
    assert timing.issue_s(sample, place, ProcessGroups(0, 1.0)) == pytest.approx(0.3)


def test_a_step_of_small_ops_waits_for_the_host_that_issues_them() -> None:
    """Kernels that take a millisecond at most, each issued in ten."""
    plan, gpt = parse_plan("dp=1,precision=fp32", batch=4), find_model("tiny-30k")
    program = lower(gpt, plan)
    kinds = {op.kind for op in program.ops} - {"fence"}
    quick = replace(made_up(1), host={f"{kind}@fp32": 1e-2 for kind in kinds})
    documents = (machine_document(None, each, 1, "today") for each in (made_up(1), quick))
    alone, waiting = (
        predict(gpt, plan, machine_from_dict(json.loads(json.dumps(document)), "made up")).step_s
        for document in documents
    )
    issued = sum(op.kind != "fence" and op.block != STEP for op in program.ops)
    assert alone < 1e-3 * issued
    assert waiting == pytest.approx(1e-2 * issued, rel=0.1)


def test_numbers_that_index_are_within_what_they_index() -> None:
    """A sample runs alone, as a rank that has everything, whatever its plan splits."""
    indexed = {
        "embedding_grad": lambda op, size: size(op.writes[0])[0],
        "loss_sums": lambda op, size: size(op.reads[0])[1],
        "loss_grad": lambda op, size: size(op.reads[0])[1],
        "route_grad": lambda op, size: size(op.reads[1])[1],
        "places": lambda op, size: size(op.writes[1])[0],
        "take_rows": lambda op, size: size(op.reads[0])[0],
    }
    found = set()
    for sample in samples("fp32"):
        if sample.key in indexed:
            program = sample.program(2)
            buffers = program.buffers
            least = indexed[sample.key](program.ops[0], lambda name, b=buffers: b[name].shape)
            assert least >= BELOW["int64"], sample.key
            found.add(sample.key)
    assert found == set(indexed)
