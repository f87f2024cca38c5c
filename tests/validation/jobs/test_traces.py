"""Steps and kernels from traces of torch.profiler; the numbers are invented, but for one file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.examples import few_and_many
from tests.messages import assert_names, names
from validation.jobs import trace_events
from validation.jobs.anatomy import Communicator
from validation.jobs.errors import LogError
from validation.jobs.measured_job import MeasuredJob
from validation.jobs.reading import read_job
from validation.jobs.step_lines import Job
from validation.jobs.trace import read_trace
from validation.jobs.trace_events import TraceEvents

HERE = Path(__file__).parent
SECOND = 1e6  # of the trace's clock


def event(name: str, start_s: float, end_s: float, cat: str = "kernel", **more: Any) -> Any:
    times = {"ts": start_s * SECOND, "dur": (end_s - start_s) * SECOND}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, **times, **more}


MARKS = [
    event("ProfilerStep#3", 100.0, 109.0, cat="gpu_user_annotation"),
    event("ProfilerStep#4", 110.0, 120.0, cat="gpu_user_annotation"),
    event("ProfilerStep#3", 90.0, 91.0, cat="user_annotation"),
]
STEPS = [
    event("aten::mm", 100.0, 120.0, cat="cpu_op"),
    event("sm90_xmma_gemm", 100.0, 104.0),
    event("ncclDevKernel_AllGather_RING_LL", 102.0, 106.0, args={"Group size": 4}),
    event("flash_fwd_kernel", 112.0, 113.0),
    event("Memcpy DtoD", 113.0, 114.0, cat="gpu_memcpy"),
]


def written(tmp_path: Path, document: Any, name: str = "trace.json") -> Path:
    path = tmp_path / name
    content = json.dumps(document).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def check(job: MeasuredJob) -> None:
    """Two steps in 20 s: 6 s of compute, a gather of 4 s of which compute hides 2 s."""
    assert [(each.last, each.step_s) for each in job.entries] == [(4, 10.0), (5, 10.0)]
    found = job.anatomy
    assert found is not None
    assert (found.compute_s, found.overlapped_s, found.exposed_s, found.idle_s) == (3, 1, 1, 6)
    assert found.classes_s == {"matmul": 2, "attention": 0.5, "elementwise": 0.5, "optimizer": 0}
    assert found.communicators_s == {Communicator("all_gather", 4): 2}


def test_on_a_host_only_the_outermost_ops_count(tmp_path: Path) -> None:
    """An op of 4 s that holds one of 3 s, and a sum by gloo that runs for 2 s on its own thread."""
    events = [
        event("ProfilerStep#0", 0.0, 10.0, cat="user_annotation"),
        event("aten::linear", 0.0, 4.0, cat="cpu_op"),
        event("aten::addmm", 1.0, 4.0, cat="cpu_op"),
        event("c10d::allreduce_", 4.0, 4.5, cat="cpu_op"),
        event("gloo:all_reduce", 3.0, 5.0, cat="user_annotation") | {"tid": 8},
    ]
    found = read_trace(written(tmp_path, events))[0].anatomy
    assert found is not None
    assert found.classes_s["matmul"] == found.compute_s == 4
    assert (found.overlapped_s, found.exposed_s, found.idle_s) == (1, 1, 5)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace"])
def test_a_traces_kernels_between_the_marks_of_its_steps_are_counted(
    name: str, tmp_path: Path
) -> None:
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": 5, "world_size": 8},
        "traceEvents": MARKS + STEPS,
        "traceName": "tp",
    }
    job, rank = read_trace(written(tmp_path, document, name))
    check(job)
    assert (rank, job.ranks) == (5, 8)
    assert read_job(written(tmp_path, document, name), Job())[1] == 5


def test_a_trace_may_be_the_list_of_its_events_alone(tmp_path: Path) -> None:
    check(read_trace(written(tmp_path, MARKS + STEPS))[0])


def test_events_without_a_name_or_an_end_are_left_out(tmp_path: Path) -> None:
    nameless = event("", 100.0, 104.0) | {"name": 7}
    endless = event("ProfilerStep#5", 120.0, 130.0, cat="gpu_user_annotation")
    del endless["dur"]
    check(read_trace(written(tmp_path, [*MARKS, nameless, endless, *STEPS]))[0])


def test_the_trace_of_the_executor_has_its_collectives_and_outermost_ops() -> None:
    """Its four marks lie within 1.080 s."""
    job, rank = read_trace(HERE / "tiny-2m-rank0-shrunk.json.gz")
    assert (rank, job.ranks, len(job.entries)) == (0, 2, 4)
    assert job.anatomy is not None
    assert job.anatomy.step_s == pytest.approx(0.27, abs=0.001)
    assert set(job.anatomy.communicators_s) == {Communicator("all_reduce")}
    assert job.anatomy.classes_s["matmul"] > 0.1
    (said,) = job.remarks
    assert_names(said, "device", "host")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@few_and_many(
    20,
    100,
    settings(deadline=None),
    events=st.lists(st.dictionaries(st.text(), VALUES, max_size=3), max_size=5),
    before=st.dictionaries(
        st.text().filter(lambda key: key != "traceEvents") | st.just("distributedInfo"),
        VALUES,
        max_size=3,
    ),
    block=st.integers(1, 40),
    indent=st.sampled_from([None, 1]),
)
def test_events_are_the_same_however_the_file_is_cut_into_blocks(
    events: list[dict[str, Any]],
    before: dict[str, Any],
    block: int,
    indent: int | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    document = {**before, "traceEvents": events, "after": 12}
    text = json.dumps(document, ensure_ascii=False, indent=indent)
    path.write_text(text, encoding="utf-8", errors="replace")
    whole = json.loads(path.read_text(encoding="utf-8"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_events, "BLOCK", block)
        found = TraceEvents(path)
        assert list(found) == whole.pop("traceEvents")
        assert found.distributed == whole.get("distributedInfo")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (json.dumps({"traceEvents": MARKS})[:-40], ("trace.json",)),
        (
            gzip.compress(json.dumps(MARKS).encode())[:-20],
            ("trace.json", "gzip"),
        ),
        (b'{"schemaVersion": 1, "traceEvents": [{"ph": "X"} {}]}', ("trace.json", "JSON")),
        (b'{"schemaVersion" 1}', ("trace.json", "JSON")),
        (json.dumps({"traceEvents": STEPS}), ("trace.json", "ProfilerStep#N", "torch.profiler")),
        (b'{"traceEvents": [' + b"[" * 100_000, ("trace.json",)),
        (gzip.compress(b"hello", mtime=0), ("trace.json", "Megatron-LM")),
    ],
)
def test_what_is_no_whole_trace_is_refused(
    content: str | bytes, named: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(LogError, check=names(*named)):
        read_job(path, Job())


def test_a_timeline_of_simgpts_own_is_refused_by_name(tmp_path: Path) -> None:
    named = {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "measured rank 0"}}
    with pytest.raises(
        LogError, check=names("simgpt predict --trace", "simgpt run --json", "torch.profiler")
    ):
        read_trace(written(tmp_path, {"traceEvents": [named, *STEPS]}))
