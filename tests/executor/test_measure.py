"""Measuring a plan's distinct ops on the device at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from executor.calibrating import calibrate as calibration
from executor.calibrating import measure_ops as measuring
from executor.calibrating.measurement_cache import keep
from executor.calibrating.microbenchmarks import Sample
from executor.launching.launch_env import RankInfo
from executor.launching.task_specs import Measurement
from tests.messages import assert_names
from workload.gpt import find_model
from workload.lowering import lower
from workload.lowering.distinct import distinct_ops
from workload.plan_text import parse_plan

TINY = find_model("tiny-30k")


@pytest.mark.distributed
@pytest.mark.usefixtures("forked_ranks")
def test_each_distinct_op_is_measured_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMGPT_CACHE", str(tmp_path))
    plan = parse_plan("pp=2,dp=2,mbs=1,precision=fp32,optimizer=sgd", batch=4)
    said: list[str] = []
    first = calibration.measured_ops(TINY, plan, 1, said.append)
    assert first.keys() == distinct_ops(TINY, plan).keys()
    assert all(0 < seconds < 1 for seconds in first.values())
    assert_names(said[-1], f"{len(first)}/{len(first)}")

    (kept,) = tmp_path.glob("ops-*.json")
    known = json.loads(kept.read_text(encoding="utf-8"))
    gone = next(iter(known))
    keep(kept, {key: 7.0 for key in known if key != gone})
    said.clear()
    again = calibration.measured_ops(TINY, plan, 1, said.append)
    assert len(said) == 1
    assert {key for key, seconds in again.items() if seconds != 7.0} == {gone.partition(" ")[2]}

    kept.write_text('{"x": ["7"]}', encoding="utf-8")
    said.clear()
    anew = calibration.measured_ops(TINY, plan, 1, lambda _: None, announce=said.append)
    (line,) = said
    assert_names(line, str(kept))
    assert anew.keys() == first.keys()
    assert 7.0 not in anew.values()


def test_ops_are_measured_in_the_slices_of_their_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks: set[int] = set()

    def timed(sample: Sample, *_: object) -> float:
        peaks.add(sample.peak_bytes)
        return 1.0

    monkeypatch.setattr(measuring, "seconds_of", timed)
    plan = parse_plan("dp=1,precision=fp32", batch=4)
    task = Measurement(gpt=TINY, plan=plan, folder=str(tmp_path))
    measuring.measure(task, RankInfo.local(0, 1, tmp_path), lambda _: None)
    assert peaks == {lower(TINY, plan).peak.total_bytes}


def test_the_same_op_in_other_slices_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more micro-batches a gpipe holds more at once, and its kernels may too."""
    counts: list[str] = []

    def timed(sample: Sample, *_: object) -> float:
        counts.append(sample.key)
        return 1.0

    monkeypatch.setattr(measuring, "seconds_of", timed)
    monkeypatch.setattr(measuring, "scratch_of", lambda peak, _: peak)
    for batch, measured in ((4, True), (4, False), (16, True)):
        plan = parse_plan("mbs=1,precision=fp32,schedule=gpipe,pp=2", batch=batch)
        task = Measurement(gpt=TINY, plan=plan, folder=str(tmp_path))
        counts.clear()
        (tmp_path / "store").unlink(missing_ok=True)
        found = measuring.measure(task, RankInfo.local(0, 1, tmp_path), lambda _: None)
        assert bool(counts) == measured
        assert found["seconds"].keys() == distinct_ops(TINY, plan).keys()
