"""Timelines: joined op by op, and as a Chrome trace."""

from __future__ import annotations

import pytest

from tests.blocks import BLOCK
from tests.messages import names
from workload.op import COMPUTE, Op
from workload.timeline import Span, Timeline, chrome_trace, join, timeline_of

OPS = (
    Op("a", "matmul", (), ("p",), BLOCK, flops=10, nbytes=4),
    Op("b", "all_reduce", ("p",), ("p",), BLOCK, stream="tp", axes=("tp",), nbytes=8),
)


def test_a_timeline_counts_from_its_first_start() -> None:
    timeline = timeline_of("measured", 3, OPS, [5.0, 6.0], [6.0, 8.5])
    assert [(s.start_s, s.end_s) for s in timeline.spans] == [(0.0, 1.0), (1.0, 3.5)]
    assert timeline.step_s == 3.5


def test_a_step_lasts_until_the_last_op_ends_whichever_was_issued_last_and_on_whichever_rank() -> (
    None
):
    """The first op of rank 0 ends last, at 5 s, and rank 1 started last, at 1 s."""
    early = timeline_of("predicted", 0, OPS, [0, 1], [5, 2])
    late = tuple(Span(1, op, 1.0, 3.0) for op in OPS)
    assert early.step_s == 5.0
    assert Timeline("predicted", early.spans + late).step_s == 5.0
    assert Timeline("predicted", late).step_s == 2.0
    assert Timeline("predicted", ()).step_s == 0.0


def test_join_pairs_the_same_ops() -> None:
    predicted = timeline_of("predicted", 0, OPS, [0, 1], [1, 2])
    measured = timeline_of("measured", 0, OPS, [0, 2], [2, 3])
    pairs = join(predicted.spans, measured.spans)
    assert [(ours.op.name, theirs.duration_s) for ours, theirs in pairs] == [("a", 2), ("b", 1)]


def test_join_refuses_a_remainder() -> None:
    one = timeline_of("predicted", 0, OPS, [0, 1], [1, 2])
    other = Timeline("measured", one.spans[:1])
    with pytest.raises(ValueError, check=names("1", "b")):
        join(one.spans, other.spans)


def test_the_trace_has_a_process_per_rank_and_a_track_per_stream() -> None:
    trace = chrome_trace([timeline_of("predicted", 2, OPS, [0, 1e-3], [1e-3, 3e-3])])
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"]
    assert names == ["predicted rank 2", COMPUTE, "tp"]
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert [(e["name"], e["tid"], e["ts"], e["dur"]) for e in slices] == [
        ("a", 0, 0.0, 1000.0),
        ("b", 1, 1000.0, 2000.0),
    ]
    assert slices[0]["args"]["flops"] == 10
    assert slices[1]["args"] == {"bytes": 8, "block": "m0.l0.forward", "axes": "tp"}
