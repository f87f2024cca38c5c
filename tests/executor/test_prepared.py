"""A program prepared for its walk: the same ops, buffers and waits, and nothing left to look up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from executor.buffer_table import BufferTable
from executor.groups import ProcessGroups
from executor.kernels import KERNELS
from executor.launching.task_specs import AdamW
from executor.nccl.issue_order import issue_order
from executor.prepared import Communication, Computation, PreparedProgram, prepare
from executor.rank_context import RankContext
from executor.timing import NoRecorder
from executor.train import Trainer
from tests.executor.peaks import CPU, trainers
from tests.executor.ranks import TIMEOUT_S
from tests.messages import names
from workload.gpt import find_model
from workload.grid import Grid
from workload.op import COMPUTE, Buffer, Op
from workload.plan_text import parse_plan
from workload.program import Program

TINY = find_model("tiny-30k")
PLANS = (
    "dp=1,mbs=2,recompute=full,offload=optimizer",
    "tp=2,y=2,z=2,zero=1,mbs=1",
    "pp=2,dp=2,zero=3,mbs=2,schedule=zb-h1",
)
# Torch's own wrappers say so in-process, whatever they are called with.
pytestmark = pytest.mark.filterwarnings("ignore:.*_tensor. is deprecated:FutureWarning")


@pytest.fixture(params=PLANS)
def trainer(request: pytest.FixtureRequest) -> Iterator[Trainer]:
    """The first rank of the first stage of a plan."""
    ready = trainers(TINY, parse_plan(request.param, batch=8))
    yield next(ready)
    ready.close()  # type: ignore[attr-defined]


def in_order(trainer: Trainer, *, late: bool) -> tuple[PreparedProgram, list[Op]]:
    """The program prepared with its receives early or late, and its ops in that order."""
    program, groups = trainer.program, ProcessGroups(trainer.place.rank, TIMEOUT_S)
    groups.prepare(program)
    order = issue_order(program, late=late)
    ready = prepare(program, trainer.table, groups, trainer.place, order)
    assert [op.index for op in ready.ops] == list(order)
    return ready, [program.ops[index] for index in order]


def test_an_op_has_the_slots_of_the_buffers_that_it_names(trainer: Trainer) -> None:
    names = list(trainer.program.buffers)
    for ready, op in zip(trainer.prepared.ops, trainer.program.ops, strict=True):
        assert (ready.work.op, ready.stream) == (op, op.stream)
        assert isinstance(ready.work, Communication) == op.communicates
        if isinstance(ready.work, Computation):
            assert ready.work.kernel is KERNELS[op.kind]
            assert [names[slot] for slot in ready.work.reads] == list(op.reads)
            assert [names[slot] for slot in ready.work.writes] == list(op.writes)


@pytest.mark.parametrize("late", [False, True])
def test_a_buffer_begins_with_the_first_op_that_writes_it_and_ends_where_it_is_released(
    trainer: Trainer, late: bool
) -> None:
    program, slots = trainer.program, trainer.table.slots
    ready, ops = in_order(trainer, late=late)
    to_come = [name for name, buffer in program.buffers.items() if not buffer.persistent]
    for own, op in zip(ready.ops, ops, strict=True):
        first = [name for name in op.writes if name in to_come]
        assert own.begins == slots(first)
        to_come = [name for name in to_come if name not in first]
    assert to_come == []
    last = ready.ops[-1]
    assert [own.frees for own in ready.ops if own is not last] == [
        slots(program.releases[own.index]) for own in ready.ops if own is not last
    ]
    assert (last.frees, ready.frees) == ((), slots(program.releases[last.index]))


def test_what_a_program_waits_for_is_awaited_but_for_ops_of_the_compute_stream(
    trainer: Trainer,
) -> None:
    program = trainer.program
    for own, waits in zip(trainer.prepared.ops, program.waits, strict=True):
        others = [index for index in waits if program.ops[index].stream != COMPUTE]
        assert [index for _, index in own.waits] == others
        assert [stream for stream, _ in own.waits] == [program.ops[i].stream for i in others]


def test_messages_alone_have_a_peer_the_next_stage_or_the_one_before() -> None:
    gpt, plan = replace(TINY, layers=3), parse_plan("pp=3,mbs=4", batch=8)
    for stage, trainer in enumerate(trainers(gpt, plan)):
        works = [op.work for op in trainer.prepared.ops if isinstance(op.work, Communication)]
        for work in works:
            peer = stage + work.op.attributes["peer"] if work.op.is_message else None
            assert work.peer == peer
        peers = {work.peer for work in works} - {None}
        assert peers == {stage - 1, stage + 1} & set(range(3))


def test_payloads_add_up_to_what_the_program_says_by_axes(trainer: Trainer) -> None:
    carried: dict[str, int] = {}
    for op in trainer.prepared.ops:
        if isinstance(op.work, Communication):
            carried[op.work.axes] = carried.get(op.work.axes, 0) + op.work.payload_bytes
    assert carried == trainer.program.comm_bytes


def test_kernels_of_other_streams_are_issued_aside_on_a_gpu_alone() -> None:
    (trainer,) = trainers(TINY, parse_plan("dp=1,offload=optimizer", batch=8))
    gpu = replace(trainer.place, device=torch.device("cuda", 0))
    groups = ProcessGroups(0, TIMEOUT_S)
    for place, expected in ((trainer.place, {""}), (gpu, {"", "to_device", "to_host"})):
        ready = prepare(trainer.program, trainer.table, groups, place)
        streams = {op.work.side_stream for op in ready.ops if isinstance(op.work, Computation)}
        assert streams == expected


def test_an_op_that_reads_what_nothing_wrote_is_an_error_before_the_first_step() -> None:
    buffers = {name: Buffer(name, (2,), "fp32", "activations") for name in "ab"}
    program = Program(TINY, parse_plan("dp=1"), (Op("add", "add", ("a",), ("b",)),), buffers, {})
    table = BufferTable(program, CPU)
    place = RankContext(grid=Grid(), rank=0, device=CPU, adamw=AdamW())
    with pytest.raises(AssertionError, check=names("add")):
        prepare(program, table, ProcessGroups(0, TIMEOUT_S), place)


def refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("looked up in a step")


def test_a_step_looks_nothing_up_that_was_prepared(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.start_afresh(0)
    properties = {
        Op: ["is_message", "is_collective", "communicates", "is_recomputed", "group", "time_key"],
        Buffer: ["nbytes", "elements"],
        Program: ["waits", "releases"],
    }
    for kind, refusing in properties.items():
        for name in refusing:
            monkeypatch.setattr(kind, name, property(refused))
    for kind, name in ((ProcessGroups, "of"), (Grid, "coordinates"), (BufferTable, "slots")):
        monkeypatch.setattr(kind, name, refused)
    for _ in range(2):
        carried = trainer._play(trainer.place, NoRecorder())
    monkeypatch.undo()
    assert carried == trainer.program.comm_bytes
