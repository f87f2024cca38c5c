"""What a step waits for, records and frees, and its streams, with stand-ins for a GPU's."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from executor.async_work import AsyncWork
from executor.buffer_table import BufferTable
from executor.data.batches import batch_of, feed
from executor.errors import LaunchError
from executor.groups import ProcessGroups
from executor.launching.launch import launch
from executor.launching.task_specs import AdamW
from executor.play import play
from executor.prepared import prepare
from executor.rank_context import RankContext
from executor.streams import SideStreams
from executor.timing import DeviceRecorder, HostRecorder, NoRecorder, recorder_for
from executor.train import Trainer
from tests.executor.ranks import TIMEOUT_S, on_ranks
from workload.gpt import find_model
from workload.grid import Grid
from workload.lowering import lower
from workload.op import STEP, Buffer, Op
from workload.plan_text import parse_plan
from workload.program import Program

TINY = find_model("tiny-30k")
SLOW_S = 0.05
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class Stand:
    """A stream, an event or a work of a GPU; `made` lists them all, `log` what happened."""

    made: list[Stand]
    log: list[str]

    def __init__(self, *_: Any, **__: Any) -> None:
        self.made.append(self)

    def __enter__(self) -> None:
        self.log.append(f"enter {self.made.index(self)}")

    def __exit__(self, *_: Any) -> None:
        self.log.append(f"leave {self.made.index(self)}")

    def record(self) -> None:
        self.log.append(f"record {self.made.index(self)}")

    def wait_stream(self, other: Stand) -> None:
        self.log.append(f"{self.made.index(self)} behind {self.made.index(other)}")

    def record_event(self) -> Stand:
        return Stand()

    def wait(self) -> None:
        self.log.append(f"wait {self.made.index(self)}")

    def get_future(self) -> Any:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch.cuda of stand-ins."""
    Stand.made, Stand.log = [], []
    current = Stand()
    monkeypatch.setattr(torch.cuda, "Stream", Stand)
    monkeypatch.setattr(torch.cuda, "Event", Stand)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)


def place(device: torch.device = CPU) -> RankContext:
    return RankContext(grid=Grid(), rank=0, device=device, adamw=AdamW())


def op(name: str, kind: str, writes: str, stream: str = "compute") -> Op:
    axes = ("dp",) if kind == "all_gather" else ()
    reads = ("part",) if axes else ()
    return Op(name, kind, reads, (writes,), STEP, stream, axes, dtype="fp32")


def test_a_side_stream_is_made_once_for_all_steps_and_uses() -> None:
    at = place(GPU)
    for _ in range(3):
        in_flight = AsyncWork(NoRecorder(), at)
        for stream in ("to_host", "to_device"):
            in_flight.aside(stream, lambda: None)
    streams = [at.streams.named(name, GPU) for name in ("to_host", "to_device")]
    assert [Stand.made.index(stream) for stream in streams] == [1, 3]
    assert SideStreams().named("to_host", GPU) is not streams[0]


def test_a_kernel_on_a_side_stream_starts_behind_the_compute_stream() -> None:
    work = AsyncWork(NoRecorder(), place(GPU)).aside("to_host", lambda: Stand.log.append("kernel"))
    assert Stand.log == ["1 behind 0", "enter 1", "kernel", "leave 1"]
    work.wait()
    assert Stand.log[-1] == "wait 2"


def test_a_gpus_events_exist_before_the_step_and_its_works_are_timed_on_one_stream() -> None:
    at = place(GPU)
    recorder = DeviceRecorder(2, at)
    events = len(Stand.made)
    assert Stand.log == [f"record {number}" for number in range(1, 5)]
    recorder.begin(0)
    for index in range(2):
        recorder.track(index, "dp", Stand())
    assert events == 5
    assert isinstance(at.streams.named("times of dp", GPU), Stand)
    assert len(Stand.made) == events + 3  # two works and one stream


def test_what_nobody_waited_for_has_landed_before_its_buffers_are_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffers = {
        "part": Buffer("part", (2,), "fp32", "activations", persistent=True),
        "whole": Buffer("whole", (2,), "fp32", "activations"),
        "loss": Buffer("loss", (1,), "fp32", "workspace", persistent=True),
    }
    ops = (op("gather", "all_gather", "whole", "dp"), op("zero", "zero", "loss"))
    program = Program(TINY, parse_plan("dp=1"), ops, buffers, {})
    assert program.releases == [[], ["whole"]]
    monkeypatch.setattr("executor.play.issue", lambda *_: Stand())
    monkeypatch.setattr(ProcessGroups, "of", lambda self, op: None)
    monkeypatch.setattr(BufferTable, "free", lambda self, slot: Stand.log.append(f"free {slot}"))
    table = BufferTable(program, CPU)
    ready = prepare(program, table, ProcessGroups(0, 1.0), place())
    play(ready, table, place(), NoRecorder())
    assert Stand.log == ["wait 1", f"free {list(buffers).index('whole')}"]


def recorded(rank: int) -> list[str]:
    """The recorders of three steps, each of which was fed beforehand."""
    kinds: list[str] = []
    program = lower(TINY, parse_plan("dp=1,precision=fp32", batch=4))
    trainer = Trainer(program, ProcessGroups(rank, TIMEOUT_S), rank=0, device=CPU, adamw=AdamW())
    trainer.start_afresh(0)
    table = trainer.table

    def counted(*arguments: Any) -> dict[str, int]:
        kinds.append(f"{type(arguments[3]).__name__} {table['m0.tokens'].sum().item() > 0}")
        return play(*arguments)

    patch = pytest.MonkeyPatch()

    def slowly(*arguments: Any) -> None:
        time.sleep(SLOW_S)
        feed(*arguments)

    patch.setattr("executor.train.play", counted)
    patch.setattr("executor.train.feed", slowly)
    text = bytes(range(1, 256)) * 8
    run = trainer.run([batch_of(text, TINY, 4, step, 0) for step in range(3)])
    patch.undo()
    names = [span.op.name for span in run.timeline.spans]
    assert names == [op.name for op in program.ops]
    assert [step.number for step in run.steps] == [1, 2, 3]
    assert min(step.seconds for step in run.steps) >= SLOW_S, "feeding is part of a step"
    return kinds


@pytest.mark.distributed
def test_the_last_step_alone_is_recorded_and_feeding_counts() -> None:
    kinds = on_ranks(1, recorded)
    assert kinds == ["NoRecorder True", "NoRecorder True", "HostRecorder True"]


def test_a_gpu_is_timed_by_events_and_a_cpu_by_the_hosts_clock() -> None:
    program = lower(TINY, parse_plan("dp=1", batch=4))
    assert isinstance(recorder_for(program, place()), HostRecorder)
    assert isinstance(recorder_for(program, place(GPU)), DeviceRecorder)


@pytest.mark.parametrize(("own", "expected"), [(None, "32"), ("8", "8")])
def test_workers_get_a_hardware_queue_for_each_of_their_streams(
    monkeypatch: pytest.MonkeyPatch, own: str | None, expected: str
) -> None:
    seen: list[str] = []

    def started(*_: Any, env: dict[str, str], **__: Any) -> None:
        seen.append(env["CUDA_DEVICE_MAX_CONNECTIONS"])
        raise LaunchError("enough")

    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    if own is not None:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", own)
    monkeypatch.setattr("executor.launching.rank_processes.subprocess.Popen", started)
    with pytest.raises(LaunchError, match="enough"):
        launch("train", "{}", ranks=1, report=print, timeout_s=1.0)
    assert seen == [expected]
