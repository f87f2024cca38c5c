"""Calibration of what experts and parts of sequences bring: samples, and their tables' use."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from executor.calibrating import calibrate_worker as timing
from executor.calibrating.microbenchmarks import Sample, repeats
from executor.calibrating.sample_values import COUNTS, NUMBERED
from executor.groups import ProcessGroups
from executor.launching.task_specs import AdamW
from executor.play import play
from executor.rank_context import RankContext
from executor.timing import NoRecorder
from simgpt.running.calibrated import _not_measured
from simulator.costs.calibrated import CalibratedCosts
from simulator.ranks.fabric import fabric_of
from tests.executor.rehearsal import plans_of_every_kind
from tests.executor.test_calibration import machine_of, sampled, samples
from tests.messages import assert_names
from topologies.hardware.profile import MeasuredTable, Profile
from topologies.routing.rings import Ring
from workload.gpt import find_model
from workload.grid import Grid
from workload.kinds import HOST_KINDS, RING_SHIFT
from workload.lowering import lower
from workload.plan_text import parse_plan
from workload.transport import PLAIN

CPU = torch.device("cpu")


# Matmuls have a grid of their own, copies to the host its link; recipes are emulated here. An
# update on the host runs, but a prediction from a calibration refuses it.
OF_NO_SAMPLE = {"fence", "grouped_matmul", "stacked_matmul", "to_device", "to_host"}
OF_NO_SAMPLE |= {*HOST_KINDS} - {"host_add"}  # which is FSDP's, and is predicted alone
OF_RECIPES = {"amax", "quantise", "update_scales", "quantise_rows", "dequantise_rows"}


def test_every_kernel_has_a_sample() -> None:
    wanted = {
        op.kernel
        for gpt, plan, _, stage in plans_of_every_kind("fp32")
        for op in lower(gpt, plan, stage).ops
        if not op.communicates
    }
    assert wanted - sampled("fp32", quick=True) == OF_NO_SAMPLE | OF_RECIPES


def test_every_kind_of_sample_can_be_played(monkeypatch: pytest.MonkeyPatch) -> None:
    """On either of the two ranks that share sequences or experts; of experts each gets as many
    rows."""
    monkeypatch.setattr(ProcessGroups, "prepare", lambda *_: None)
    played = set()
    for sample in samples("fp32"):
        if sample.key in played:
            continue
        played.add(sample.key)
        for rank in (0, 1) if sample.grid else (0,):
            place = RankContext(grid=Grid(dp=2), rank=rank, device=CPU, adamw=AdamW())
            place = timing._sliced(sample, place)
            if sample.grid:
                assert place.grid.ranks == sample.grid.ranks == 2
                assert place.rank == rank
            groups = ProcessGroups(rank, 1.0)
            _, ready, table = timing._prepared(sample, 2, place, groups)
            play(ready, table, place, NoRecorder())
    assert len(played) > 100


@pytest.mark.parametrize("step", [0, 1])
def test_attention_on_parts_of_sequences_takes_the_time_of_its_own_kernels(step: int) -> None:
    """Of old tables, which have none of them, that of attention on whole sequences."""
    plan = parse_plan("cp=2,precision=fp32", batch=2)
    ops = lower(find_model("tiny-30k"), plan).ops
    op = next(op for op in ops if op.label == f"attention.{step}")
    own, whole = "attention.ring" + (".unmasked" if step else ""), "attention"
    columns = ("ranks", "rows", "heads", "width", "sequence", "seconds")
    row = (1.0, *(float(op.attributes[key]) for key in ("sequences", "heads", "width")), 1.0)

    def seconds(**tables: float) -> float:
        every = {f"{key}@fp32": MeasuredTable(columns, ((*row, s),)) for key, s in tables.items()}
        return CalibratedCosts(Profile(kernels=every), 1, 1e9).seconds(op)

    both = seconds(**{whole: 1.0, own: 3.0})
    assert both == pytest.approx(3 * seconds(**{whole: 1.0}))


def test_what_a_gpu_reserves_is_neither_free_nor_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (50, 80))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 20)
    assert timing.reserve_bytes(torch.device("cuda")) == 80 - 50 - 20
    assert timing.reserve_bytes(CPU) == 0


def test_a_shift_around_a_ring_takes_what_was_measured() -> None:
    machine = machine_of(2)
    fabric, ring = fabric_of(machine, 2), Ring(2, 1, 2, 1e9)
    assert machine.profile is not None
    table = machine.profile.collectives[RING_SHIFT]
    assert fabric.seconds(PLAIN[RING_SHIFT], 1 << 20, ring) == pytest.approx((1 << 20) * 1e-9)
    rows = tuple((*row[:-1], 5 * row[-1]) for row in table.rows)
    slower = replace(table, rows=rows)
    profile = replace(machine.profile, collectives={RING_SHIFT: slower})
    fabric = fabric_of(replace(machine, profile=profile), 2)
    assert fabric.seconds(PLAIN[RING_SHIFT], 1 << 20, ring) == pytest.approx(5 * (1 << 20) * 1e-9)


@pytest.mark.parametrize("capacity", [0.0, 1.0])
def test_any_models_ops_of_experts_can_be_measured_one_by_one(
    capacity: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer experts, and fewer rows for some, than other tables have parts."""
    monkeypatch.setattr(ProcessGroups, "prepare", lambda *_: None)
    gpt = find_model("tiny-mixtral-130k").changed(experts=4, capacity=capacity)
    program = lower(gpt, parse_plan("dp=2,ep=2,precision=fp32", batch=2))
    ops = {op.kind: op for op in program.ops if op.kind in {*COUNTS, *NUMBERED}}
    assert len(ops) == len(COUNTS) + len(NUMBERED)
    place = RankContext(grid=Grid(dp=2), rank=0, device=CPU, adamw=AdamW())
    for op in ops.values():
        sample = Sample(op.kind, {}, repeats(op, program))
        _, ready, table = timing._prepared(sample, 2, place, ProcessGroups(0, 1.0))
        play(ready, table, place, NoRecorder())
        if op.kind in COUNTS:
            counts, rows = op.reads[COUNTS[op.kind]], program.buffers[op.reads[0]].shape[0]
            assert int(table[f"{counts}#0"].sum()) == rows


def test_a_run_whose_exchanges_are_not_measured_says_so_and_is_not_predicted() -> None:
    once = parse_plan("dp=2,ep=2,dispatcher=once_per_node", batch=4)
    assert_names(_not_measured(None, once), "dispatcher=once_per_node")
    assert _not_measured(None, once.changed(dispatcher="all_gather")) == ""
