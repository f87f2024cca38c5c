"""The buffer table: what lives in it, and that it reuses what does not."""

from __future__ import annotations

import torch

from executor.buffer_table import BufferTable
from tests.blocks import BLOCK
from workload.gpt import find_model
from workload.lowering import lower
from workload.op import Buffer, Op
from workload.plan_text import parse_plan
from workload.program import Program

CPU = torch.device("cpu")
TINY = find_model("tiny-30k")


def table_of(*buffers: Buffer, ops: tuple[Op, ...] = ()) -> BufferTable:
    named = {buffer.name: buffer for buffer in buffers}
    return BufferTable(Program(TINY, parse_plan("data=1"), ops, named, {}), CPU)


def test_persistent_buffers_live_from_the_start_and_are_zero() -> None:
    table = table_of(Buffer("w", (3, 4), "fp32", "parameters", True))
    assert table["w"].count_nonzero() == 0


def test_a_freed_buffers_memory_goes_to_the_next_of_its_size() -> None:
    table = table_of(
        Buffer("a", (8,), "fp32", "activations"),
        Buffer("b", (2, 8), "bf16", "activations"),
        Buffer("c", (9,), "fp32", "activations"),
    )
    place = table.output("a").data_ptr()
    table.free("a")
    assert table.output("c").data_ptr() != place
    assert table.output("b").data_ptr() == place
    assert table["b"].shape == (2, 8)
    assert table["b"].dtype == torch.bfloat16


def test_what_lies_in_the_hosts_memory_is_told_apart() -> None:
    states = [Buffer(name, (3, 4), "fp32", "host", True) for name in "ab"]
    table = table_of(Buffer("w", (3, 4), "fp32", "parameters", True), *states)
    assert table.host_bytes == 96


def test_buffers_that_are_summed_together_lie_in_one_arena() -> None:
    parts = [Buffer(name, (2, n), "fp32", "gradients", True) for name, n in (("a", 3), ("b", 5))]
    names = ("a", "b")
    op = Op("reduce", "all_reduce", names, names, BLOCK, axes=("data",), dtype="fp32")
    table = table_of(*parts, ops=(op,))
    ((source, target),) = table.operands(op)
    assert source is target
    target.fill_(7.0)
    assert target.numel() == 16
    assert [float(table[name].sum()) for name in names] == [42.0, 70.0]


def test_after_a_step_only_what_lasts_is_left() -> None:
    program = lower(TINY, parse_plan("data=1,recompute=full,micro_batch=2", batch=4))
    table = BufferTable(program, CPU)
    lasting = {name for name, buffer in program.buffers.items() if buffer.persistent}
    for op, gone in zip(program.ops, program.releases, strict=True):
        for name in op.writes:
            table.output(name)
        for name in gone:
            table.free(name)
    assert set(table._tensors) == lasting
