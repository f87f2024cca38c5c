"""Traces of predictions as Perfetto reads them, and the checker that says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simgpt.options import compact
from tests.examples import one_in
from tests.simgpt.face import simgpt
from tests.simgpt.trace import problems

MOST_BYTES = 20e6


def slice_of(name: str, ts: float, dur: float, tid: int = 0) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur}


def flow(phase: str, ts: float, tid: int = 0) -> dict[str, Any]:
    about = {"ph": phase, "name": "m", "id": 1, "pid": 0, "tid": tid, "ts": ts}
    return {**about, "bp": "e"} if phase == "f" else about


def trace_of(*events: Any) -> dict[str, Any]:
    names = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "rank 0"}}]
    for tid in (0, 1):
        named = {"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": "c"}}
        names.append(named)
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms"}


@pytest.mark.parametrize(
    "events",
    [
        (slice_of("a", 0, 1), slice_of("b", 1, 1)),
        (slice_of("a", 0, 3), slice_of("b", 1, 1)),
        (slice_of("b", 1, 1), slice_of("a", 0, 3), slice_of("c", 1, 0)),
        (slice_of("a", 0, 2), slice_of("b", 1, 2, tid=1), flow("s", 1), flow("f", 1, tid=1)),
    ],
)
def test_slices_may_follow_and_nest_and_flows_join_them(events: tuple[Any, ...]) -> None:
    assert problems(trace_of(*events)) == []


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ((slice_of("a", 0, 2), slice_of("b", 1, 2)), "b on (0, 0)"),
        ((slice_of("a", 0, 1.002), slice_of("b", 1, 1)), "b on (0, 0)"),
        ((slice_of("a", 0, -1),), "dur = -1"),
        ((slice_of("a", 0, float("nan")),), "dur = nan"),
        ((slice_of("a", 0, 1, tid=7),), "track 7 of process 0"),
        ((slice_of("", 0, 1),), "no name"),
        (({"ph": "B", "name": "a"},), "phase"),
        ((slice_of("a", 0, 2), flow("s", 1), flow("f", 3)), "flow m"),
        ((slice_of("a", 0, 2), flow("s", 1)), "flow 1"),
        ((slice_of("a", 0, 2), flow("s", 2), flow("f", 1)), "before"),
    ],
)
def test_the_checker_finds_what_is_wrong(events: tuple[Any, ...], words: str) -> None:
    assert any(words in problem for problem in problems(trace_of(*events)))


def traced(path: Path, model: str, plan: str, *words: str) -> dict[str, Any]:
    said = simgpt("predict", model, "-m", "frontier", "--plan", plan, *words, "--trace", str(path))
    assert said.status == 0, said.err
    trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return trace


@pytest.mark.parametrize(
    "plan",
    one_in(
        2,
        [
            "tp=2,y=2,z=2,dp=2,recompute=full",
            "tp=2,dp=2,pp=2,mbs=1",
            "dp=2,pp=4,mbs=1,schedule=gpipe",
            "pp=2,vpp=2,mbs=1",
            "pp=2,vpp=2,mbs=1,schedule=zb-v",
            "dp=2,pp=2,mbs=1,schedule=zb-h1",
            "z=4,dp=2,offload=optimizer",
            "y=4,dp=4",
        ],
    ),
)
def test_the_trace_of_a_prediction_is_one_that_perfetto_reads(plan: str, tmp_path: Path) -> None:
    trace = traced(tmp_path / "t.json", "tiny-1m", plan, "--batch", "16")
    assert problems(trace) == []
    flows = [event for event in trace["traceEvents"] if event["ph"] in "sf"]
    assert bool(flows) == ("pp" in plan)


def test_a_flow_joins_the_send_of_a_message_to_its_receive(tmp_path: Path) -> None:
    trace = traced(tmp_path / "t.json", "tiny-1m", "pp=2,mbs=1", "--batch", "4")
    events = trace["traceEvents"]
    begins, ends = ([e for e in events if e["ph"] == phase] for phase in "sf")
    assert len(begins) == len(ends) == 8  # activations there and gradients back, 4 micro-batches
    assert {(b["pid"], e["pid"]) for b, e in zip(begins, ends, strict=True)} == {(0, 1), (1, 0)}
    track = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {track[e["pid"], e["tid"]].partition(".")[0] for e in begins} == {"send"}
    assert {track[e["pid"], e["tid"]].partition(".")[0] for e in ends} == {"recv"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    ["tp=8,y=2,z=64,dp=32,recompute=full", "tp=8,z=32,pp=4,dp=32,mbs=2,recompute=full"],
)
def test_the_trace_of_32768_ranks_stays_under_20_megabytes(plan: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    trace = traced(path, "gpt-640b", plan, "-n", "32768", "--batch", "8192")
    assert problems(trace) == []
    assert path.stat().st_size < MOST_BYTES
    assert len(compact(trace)) < MOST_BYTES
