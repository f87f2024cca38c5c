"""The buffer table: what lives in it, and that it reuses what does not."""

from __future__ import annotations

import pytest
import torch

from executor.buffer_table import BufferTable
from executor.groups import ProcessGroups
from executor.launching.task_specs import AdamW
from executor.prepared import prepare
from executor.rank_context import DTYPES, RankContext
from tests.blocks import BLOCK
from workload.gpt import find_model
from workload.grid import Grid
from workload.lowering import lower
from workload.op import Buffer, Op
from workload.plan_text import parse_plan
from workload.program import Program

CPU = torch.device("cpu")
TINY = find_model("tiny-30k")
PLACE = RankContext(grid=Grid(), rank=0, device=CPU, adamw=AdamW())


def table_of(*buffers: Buffer, ops: tuple[Op, ...] = ()) -> BufferTable:
    named = {buffer.name: buffer for buffer in buffers}
    return BufferTable(Program(TINY, parse_plan("dp=1"), ops, named, {}), CPU)


def test_persistent_buffers_live_from_the_start_and_are_zero() -> None:
    table = table_of(Buffer("w", (3, 4), "fp32", "parameters", True))
    assert table["w"].count_nonzero() == 0


def test_a_freed_buffers_memory_goes_to_the_next_of_its_size() -> None:
    table = table_of(
        Buffer("a", (8,), "fp32", "activations"),
        Buffer("b", (2, 8), "bf16", "activations"),
        Buffer("c", (9,), "fp32", "activations"),
    )
    a, b, c = table.slots("abc")
    table.begin(a)
    place = table["a"].data_ptr()
    table.free(a)
    table.begin(c)
    table.begin(b)
    assert table["c"].data_ptr() != place
    assert table["b"].data_ptr() == place
    assert table["b"].shape == (2, 8)
    assert table["b"].dtype == torch.bfloat16


def test_what_lies_in_the_hosts_memory_is_told_apart() -> None:
    states = [Buffer(name, (3, 4), "fp32", "host", True) for name in "ab"]
    table = table_of(Buffer("w", (3, 4), "fp32", "parameters", True), *states)
    assert table.host_bytes == 96


def test_buffers_that_are_summed_together_lie_in_one_arena() -> None:
    parts = [Buffer(name, (2, n), "fp32", "gradients", True) for name, n in (("a", 3), ("b", 5))]
    names = ("a", "b")
    op = Op("reduce", "all_reduce", names, names, BLOCK, axes=("dp",), dtype="fp32")
    table = table_of(*parts, ops=(op,))
    ((source, target),) = table.pairs(table.slot_pairs(op))
    assert source is target
    target.fill_(7.0)
    assert target.numel() == 16
    assert [float(table[name].sum()) for name in names] == [42.0, 70.0]


@pytest.mark.parametrize(
    ("first", "second", "sums"),
    [
        ("ab", "abc", [{"ab"}, {"ab", "c"}]),
        ("abc", "abcd", [{"abc"}, {"abc", "d"}]),
        ("ab", "ab", [{"ab"}, {"ab"}]),
        ("abc", "bd", [{"abc"}, {"b", "d"}]),
    ],
)
def test_two_sums_of_the_same_buffers_share_an_arena_and_sum_each_buffer_once(
    first: str, second: str, sums: list[set[str]]
) -> None:
    """As where gradients are summed over data and then, some more with them, over the two copies
    of the model: what the second one sums are whole arenas, or the buffers that it alone has."""
    parts = [Buffer(name, (n,), "fp32", "gradients", True) for n, name in enumerate("abcd", 2)]
    pairs = ((first, "dp"), (second, "opposite"))
    ops = [Op(axis, "all_reduce", tuple(n), tuple(n), BLOCK, axes=(axis,)) for n, axis in pairs]
    table = table_of(*parts, ops=tuple(ops))
    for number, name in enumerate("abcd"):
        table[name].fill_(10.0**number)
    for op, names in zip(ops, sums, strict=True):
        found = table.pairs(table.slot_pairs(op))
        assert all(source is target for source, target in found)
        values = [sorted(set(source.tolist())) for source, _ in found]
        expected = [sorted(10.0 ** "abcd".index(n) for n in name) for name in names]
        assert sorted(values) == sorted(expected)
        assert sum(source.numel() for source, _ in found) == sum(
            table[name].numel() for name in op.reads
        )


def test_after_a_step_only_what_lasts_is_left() -> None:
    program = lower(TINY, parse_plan("dp=1,recompute=full,mbs=2", batch=4))
    table = BufferTable(program, CPU)
    ready = prepare(program, table, ProcessGroups(0, 1.0), PLACE)
    for op in ready.ops:
        for slot in op.begins:
            table.begin(slot)
        for slot in op.frees:
            table.free(slot)
    for slot in ready.frees:
        table.free(slot)
    lasting = [buffer.persistent for buffer in program.buffers.values()]
    assert [tensor is not None for tensor in table._tensors] == lasting


def test_freed_memory_of_one_size_takes_the_shape_and_precision_of_what_begins() -> None:
    forms = [((8,), "fp32"), ((2, 4), "fp32"), ((4, 4), "bf16"), ((8,), "fp32")]
    table = table_of(*(Buffer(f"{n}", *form, "activations") for n, form in enumerate(forms)))
    places = set()
    for slot, (shape, dtype) in enumerate(forms):
        table.begin(slot)
        tensor = table[f"{slot}"]
        assert (tensor.shape, tensor.dtype) == (shape, DTYPES[dtype])
        places.add(tensor.data_ptr())
        table.free(slot)
    assert len(places) == 1
