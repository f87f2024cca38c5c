"""The peak of a step for the rows that came, beside the program's, which counts their mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executor.buffer_table import BufferTable
from executor.kernels.experts import weighted_gelu_grad, weighted_swiglu_grad
from executor.launching.task_specs import AdamW
from executor.memory.routed_rows import most_over_mean, peak_of_rows, rows_over_mean
from executor.rank_context import RankContext
from workload.gpt import find_model
from workload.grid import Grid
from workload.op import Buffer, Op
from workload.plan_text import parse_plan
from workload.program import Program

TINY, CPU = find_model("tiny-30k"), torch.device("cpu")


def program_of(rows_of: str) -> Program:
    """One op that reads counts of rows and writes 4 rows of 8 numbers on average."""
    counts = Buffer("counts", (2,), "int64", "activations", persistent=True)
    rows = Buffer("rows", (4, 8), "fp32", "activations", rows_of=rows_of)
    ops = (Op("take", "take_rows", ("counts",), ("rows",)),)
    return Program(TINY, parse_plan("dp=1"), ops, {"counts": counts, "rows": rows}, {})


@pytest.mark.parametrize("came", [(5, 2), (0, 1)])
def test_the_peak_counts_as_many_rows_as_came(came: tuple[int, int]) -> None:
    """Two counts of 8 bytes, and rows of 8 numbers in fp32; 4 of them where none has come yet."""
    program = program_of("counts")
    table = BufferTable(program, CPU)
    assert peak_of_rows(program, table) == program.peak.total_bytes == 2 * 8 + 4 * 8 * 4
    table["counts"].copy_(torch.tensor(came))
    table.begin(*table.slots(["rows"]))
    assert table["rows"].shape == (sum(came), 8)
    assert peak_of_rows(program, table) == 2 * 8 + sum(came) * 8 * 4

    assert rows_over_mean(program, table) == {"counts": sum(came) / 4}


def test_a_program_whose_rows_no_data_counts_has_no_other_peak() -> None:
    program = program_of("")
    table = BufferTable(program, CPU)
    assert peak_of_rows(program, table) is None
    assert most_over_mean([rows_over_mean(program, table)]) is None


def test_ranks_wait_in_each_layer_for_the_one_with_most_rows() -> None:
    """1.5 in the first layer, 1.1 in the second, which another stage's ranks have."""
    ranks = [{"l0": 0.5}, {"l0": 1.5}, {"l1": 1.1}, {"l1": 0.9}]
    assert most_over_mean(ranks) == pytest.approx(1.3)


@pytest.mark.parametrize("kernel", [weighted_swiglu_grad, weighted_gelu_grad])
def test_gradients_of_weighted_activations_are_the_same_in_slices_of_rows(kernel: Any) -> None:
    torch.manual_seed(0)
    width = 6 if kernel is weighted_gelu_grad else 12
    reads = [torch.randn(7, 6), torch.randn(7, width), torch.rand(7, dtype=torch.float64)]
    found = []
    for scratch in (0, 1, 200):
        at = RankContext(grid=Grid(), rank=0, device=CPU, adamw=AdamW(), scratch=scratch)
        writes = [torch.empty(7, width), torch.empty(7, dtype=torch.float64)]
        kernel(Op("grad", "", (), ()), reads, writes, at)
        found.append(writes)
    for writes in found[1:]:
        torch.testing.assert_close(writes, found[0])
