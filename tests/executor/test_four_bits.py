"""Kernels of 4 bits by hand: rounding, Hadamard transforms, scales of two levels, products."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import pytest
import torch

from executor.kernels.eight_bits import quantised
from executor.kernels.four_bits import casts, rounding
from executor.kernels.four_bits.hadamard import turned
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from workload.grid import Grid
from workload.op import Op
from workload.op_attributes import Attributes
from workload.recipes.table import GRADIENT, INPUT, TWO_LEVELS

AT = RankContext(grid=Grid(), rank=0, device=torch.device("cpu"), adamw=AdamW(), scratch=4096)


def numbers(codes: torch.Tensor) -> list[float]:
    found: list[float] = rounding.unpacked(rounding.packed(codes), torch.float32).tolist()
    return found


def test_each_number_of_four_bits_stays_as_it_is() -> None:
    every = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6, 0])
    assert numbers(rounding.nearest(every)) == every.tolist()
    for share in (0.0, 0.999):
        drawn = rounding.drawn(every, torch.full(every.shape, share, dtype=torch.float64))
        assert torch.equal(drawn & 7, rounding.nearest(every) & 7)


def test_of_two_numbers_as_near_that_with_the_even_code_is_taken() -> None:
    x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, -2.6, 100.0])
    assert numbers(rounding.nearest(x)) == [0, 1, 1, 2, 2, 4, 4, 6, -3, 6]


def gradient(rows: int, columns: int, /, **how: Unpack[Attributes]) -> Op:
    known: Attributes = {"rows": rows, "columns": columns, "sequence": 32, "column_axes": ()}
    known["bands"] = (columns,)
    known |= {"place": "l0.up.w", "operand": GRADIENT, "scaling": TWO_LEVELS, "form": "NT"}
    return Op("q", "quantise", (), (), micro_batch=0, attributes={**known, **how})


def test_random_rounding_is_right_in_the_mean() -> None:
    """2.3 becomes 2 or 3; in 40,000 draws the share of 3 has a deviation of 0.0023."""
    at = replace(AT, scratch=1 << 24)
    uniform = rounding.uniform(gradient(400, 100), slice(0, 400), "rows", at)
    x = torch.full((400, 100), -2.3, dtype=torch.float64)
    found = rounding.unpacked(rounding.packed(rounding.drawn(x, uniform)), torch.float64)
    assert set(found.flatten().tolist()) == {-3.0, -2.0}
    assert found.mean().item() == pytest.approx(-2.3, abs=5 * 0.0023)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    other = rounding.uniform(gradient(400, 100), slice(0, 400), "columns", at)
    assert not torch.equal(uniform, other)


def test_an_element_is_rounded_alike_on_every_split() -> None:
    """Bands of 32 and 16 columns over x, and sequences of 32 tokens over data."""
    whole = rounding.uniform(gradient(64, 48, bands=(32, 16)), slice(0, 64), "rows", AT)
    for rank in range(4):
        at = replace(AT, grid=Grid(tp=2, dp=2), rank=rank)
        x, data = at.index("tp"), at.index("dp")
        op = gradient(32, 24, bands=(32, 16), column_axes=("tp",))
        own = rounding.uniform(op, slice(16, 32), "rows", at)
        rows = whole[32 * data + 16 : 32 * data + 32]
        parts = rows[:, 16 * x : 16 * x + 16], rows[:, 32 + 8 * x : 40 + 8 * x]
        assert torch.equal(own, torch.cat(parts, 1))


def of_experts(count: int, axes: tuple[str, ...], /, **more: Unpack[Attributes]) -> Op:
    how: Attributes = {"place": "l0.experts.up.w", "expert_axes": axes, "count": count}
    how |= {"sequences": 2, "gathered_axes": (), "row_axes": ()}
    how |= more
    return gradient(20, 32, **how)


def test_rows_of_an_expert_are_rounded_alike_wherever_it_is() -> None:
    """The fourth of four experts is the second of the second rank that exchanges rows; both ranks
    count from the first one's tokens. Other ranks' and other experts' rows are rounded apart."""
    one = rounding.uniform(of_experts(4, ()), slice(0, 32), "rows", AT, 3)
    two = replace(AT, grid=Grid(dp=4, experts=2), rank=1)
    assert torch.equal(one, rounding.uniform(of_experts(2, ("ep",)), slice(0, 32), "rows", two, 1))
    others = [(of_experts(4, ()), AT, 2), (of_experts(2, ("ep",)), replace(two, rank=3), 1)]
    for op, at, expert in others:
        assert not torch.equal(one, rounding.uniform(op, slice(0, 32), "rows", at, expert))


def test_ranks_with_parts_of_an_expert_draw_by_the_same_first_token() -> None:
    """Of four ranks on data two have parts of the same experts, whose rows they gather."""
    op = of_experts(4, (), gathered_axes=("etp",))
    grid = Grid(dp=4, etp=2, experts=1)
    drawn = [
        rounding.uniform(op, slice(0, 32), "rows", replace(AT, grid=grid, rank=rank), 3)
        for rank in range(4)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[2], drawn[3])
    assert not torch.equal(drawn[0], drawn[2])


def test_copies_of_an_expert_on_ranks_of_x_have_other_rows_of_a_sequence() -> None:
    """The second of two ranks has rows from the second of two sequences of 32 tokens on, as the
    first rank of another micro-batch of one sequence would."""
    op = of_experts(4, (), row_axes=("tp",))
    first, second = (
        rounding.uniform(op, slice(0, 32), "rows", replace(AT, grid=Grid(tp=2), rank=rank), 3)
        for rank in range(2)
    )
    assert not torch.equal(first, second)
    one = replace(AT, grid=Grid(dp=2), rank=1)
    alone = replace(op, attributes={**op.attributes, "sequences": 1, "row_axes": ()})
    assert torch.equal(second, rounding.uniform(alone, slice(0, 32), "rows", one, 3))


def test_each_expert_is_cast_by_its_own_largest_value() -> None:
    """Of 3 and 17 rows; those that fill the second's last 16 up are zero, and not turned to be the
    first's."""
    x = torch.cat([torch.full((3, 16), 1.0), torch.full((17, 16), 5.0)])
    counts = torch.tensor([1, 9, 2, 8])  # of two ranks for two experts
    op = gradient(10, 16, operand=INPUT, count=2, align=128, blocks=((1, 16), (16, 1)))
    most = torch.empty(2, 2)
    casts.largest(op, [x, counts], most, AT)
    assert most[:, 0].tolist() == [1, 5]
    assert most[0, 1] == turned(torch.cat([x[:3], torch.zeros(13, 16)])).abs().max()
    copies = [torch.full((3, 128, 8), 255, dtype=torch.uint8) for _ in range(2)]
    scales = [torch.full(shape, 255, dtype=torch.uint8) for shape in ((3, 128, 1), (3, 8, 16))]
    casts.quantise(op, [x, most, counts], [copies[0], scales[0], copies[1], scales[1]], AT)
    values = rounding.unpacked(copies[0].view(-1, 8), torch.float32)
    assert values[:3].eq(6).all()
    assert values[128:145].eq(6).all()
    assert values[3:128].eq(0).all()
    assert values[145:].eq(0).all()
    eights = scales[0].view(torch.float8_e4m3fn).view(-1).float()
    assert eights[:3].eq(448).all()
    assert eights[128:145].eq(448).all()
    assert eights[145:].eq(0).all()
    assert scales[1].view(24, 16)[2:8].eq(0).all()
    assert scales[1].view(24, 16)[8:10].gt(0).all()


def test_a_product_over_turned_rows_is_that_of_the_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(32, n, generator=generator, dtype=torch.float64) for n in (5, 7))
    assert torch.allclose(turned(a).t() @ turned(b), a.t() @ b, atol=1e-12)
    one = torch.zeros(16, 1)
    one[0] = 4.0
    assert turned(one).view(-1).tolist() == [1.0] * 16  # the first sign is +


def test_scales_of_two_levels_by_hand() -> None:
    """The largest, 12, is 6 x 448 by the tensor's scale: its block's scale is 448. Of 1.5 it is
    56, and both become 6; 0.5 in the second block becomes 2."""
    x = torch.zeros(1, 32).repeat(16, 1)
    x[0, 0], x[0, 1], x[0, 16], x[0, 17] = 12.0, -1.1, 1.5, 0.5
    op = gradient(16, 32, operand=INPUT, blocks=((1, 16),))
    most, stored = torch.zeros(1), torch.empty(256, dtype=torch.uint8)
    scales = torch.empty(16, 2, dtype=torch.uint8)
    casts.largest(op, [x], most, AT)
    assert most.item() == 12
    casts.quantise(op, [x, most], [stored, scales], AT)
    assert scales.view(torch.float8_e4m3fn)[0].tolist() == [448, 56]
    values = rounding.unpacked(stored.view(16, 16), torch.float32)
    assert values[0, :2].tolist() == [6, -0.5]
    assert values[0, 16:18].tolist() == [6, 2]
    assert scales[1:].sum() == values[1:].abs().sum() == 0


@pytest.mark.parametrize("form", ["NN", "NT", "TN"])
def test_a_product_in_four_bits_is_exact_where_its_values_are(form: str) -> None:
    """Whole numbers to 6 with 6 in each block are what they were: the product is exact."""
    generator = torch.Generator().manual_seed(0)
    m, n, k = 32, 48, 64
    shapes = [(m, k) if form[0] == "N" else (k, m), (k, n) if form[1] == "N" else (n, k)]
    grid, wide, reads = torch.tensor([0.0, 1.0, -2.0, 3.0, 4.0, -6.0]), [], []
    for rows, columns in shapes:
        x = grid[torch.randint(6, (rows, columns), generator=generator)]
        x[::16, ::16] = 6.0
        op = gradient(rows, columns, operand="weight", blocks=((16, 16),))
        scales = torch.empty(rows // 16, columns // 16, dtype=torch.uint8)
        stored = torch.empty(rows * columns // 2, dtype=torch.uint8)
        casts.quantise(op, [x, torch.tensor([6.0])], [stored, scales], AT)
        wide.append(x)
        reads.append((stored, scales, torch.tensor([6.0])))
    how: Attributes = {"form": form, "m": m, "n": n, "k": k}
    how |= {"blocks": ((16, 16),) * 2, "formats": ("e2m1",) * 2}
    op, out = gradient(m, n, **how), torch.empty(m * n)
    first, second = reads
    flat = [first[0], second[0], first[1], second[1], first[2], second[2]]
    quantised.matmul(op, flat, [out], AT)
    left = wide[0] if form[0] == "N" else wide[0].t()
    right = wide[1] if form[1] == "N" else wide[1].t()
    assert torch.allclose(out.view(m, n), left @ right, rtol=1e-5, atol=1e-4)
