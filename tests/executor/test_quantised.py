"""Kernels of recipes by hand: casts into 8 bits, their scales, and products of what was cast."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from executor.kernels.eight_bits import blocks, quantised
from executor.launching.task_specs import AdamW
from executor.memory.allocations import allocations
from executor.rank_context import RankContext
from workload.grid import Grid
from workload.op import Op
from workload.op_attributes import Attributes
from workload.recipes.table import BLOCKS, CURRENT, POWERS, WHOLE

AT = RankContext(grid=Grid(), rank=0, device=torch.device("cpu"), adamw=AdamW(), scratch=4096)


def cast(
    x: torch.Tensor,
    scaling: str,
    block: tuple[int, int],
    scales: tuple[int, ...],
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes and the scales of a matrix in E4M3."""
    rows, columns = x.shape
    how: Attributes = {"rows": rows, "columns": columns, "scaling": scaling}
    how |= {"blocks": (block,), "formats": ("e4m3",)}
    op = Op("q", "quantise", (), (), attributes=how)
    into = torch.empty(rows, columns, dtype=torch.uint8), torch.empty(scales, dtype=dtype)
    largest = x.abs().max().float().view(1)
    quantised.quantise(op, [x, largest], list(into), AT)
    return into


def values(stored: torch.Tensor) -> list[list[float]]:
    found: list[list[float]] = stored.view(torch.float8_e4m3fn).float().tolist()
    return found


def test_a_tensors_largest_value_becomes_the_formats_largest() -> None:
    """448 over 7 is 64: 1 becomes 64, and 0.3 becomes 19.2, between 18 and 20 in steps of 2."""
    x = torch.tensor([[7.0, 1.0], [-0.3, 0.0]])
    stored, scale = cast(x, CURRENT, WHOLE, (1,), torch.float32)
    assert values(stored) == [[448, 64], [-20, 0]]
    assert scale.item() == pytest.approx(7 / 448)
    assert torch.equal(x, torch.tensor([[7.0, 1.0], [-0.3, 0.0]]))  # the source stays as it is


def test_a_block_of_32_has_the_power_of_two_that_the_standard_says() -> None:
    """Of 20 the exponent is 4, and of E4M3's largest 8: values are divided by 2 to the -4."""
    x = torch.zeros(1, 64)
    x[0, 3], x[0, 40] = 20.0, 0.5
    stored, scale = cast(x, POWERS, (1, 32), (1, 2), torch.uint8)
    assert scale.tolist() == [[127 - 4, 127 - 9]]
    assert values(stored)[0][3] == 20 * 16
    assert values(stored)[0][40] == 0.5 * 2**9


def test_a_shorter_last_block_has_a_scale_of_its_own() -> None:
    x = torch.tensor([[1.0, 2.0, 4.0]])
    stored, scale = cast(x, BLOCKS, (1, 2), (1, 2), torch.float32)
    assert torch.allclose(scale, torch.tensor([[2 / 448, 4 / 448]]))
    assert values(stored) == [[224, 448, 448]]


def test_delayed_scales_are_the_formats_largest_over_the_largest_of_16_steps() -> None:
    """In fp32 448 over 3.4 and 448 times the reciprocal of 3.4 are not the same."""
    noted, history, scales = torch.tensor([3.4, 0.0, 7.0]), torch.zeros(16, 3), torch.zeros(3)
    op = Op("s", "update_scales", (), (), attributes={"largest": (448.0, 448.0, 57344.0)})
    for _ in range(16):
        quantised.update_scales(op, [], [noted, history, scales], AT)
    exact = torch.tensor([448.0, 0.0, 57344.0]) / torch.tensor([3.4, 1.0, 7.0])
    assert scales.tolist() == exact.tolist()
    assert exact[0] != 448.0 * (1 / torch.tensor(3.4))
    noted[0] = 1.0
    quantised.update_scales(op, [], [noted, history, scales], AT)
    assert scales[0] == 448  # the seventeenth step has forgotten the first
    assert noted.tolist() == [0, 0, 0]


@pytest.mark.parametrize("form", ["NN", "NT", "TN"])
def test_a_product_is_that_of_the_values_at_their_own_size(form: str) -> None:
    """In parts too, of fewer rows and columns than there are; zeros follow a tile."""
    generator = torch.Generator().manual_seed(0)
    m, n, k = 40, 24, 64
    shapes = [(m, k) if form[0] == "N" else (k, m), (k, n) if form[1] == "N" else (n, k)]
    blocks = [(1, 32) if form[0] == "N" else (32, 1), (32, 1) if form[1] == "N" else (1, 32)]
    wide, stored = [], []
    for (rows, columns), block in zip(shapes, blocks, strict=True):
        x = torch.randn(rows, columns, generator=generator)
        counts = rows // block[0], columns // block[1]
        found, scale = cast(x, POWERS, block, counts, torch.uint8)
        spread = scale.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
        wide.append(found.view(torch.float8_e4m3fn).float() * 2.0 ** (spread.float() - 127))
        stored.append((found, scale))
    a = wide[0] if form[0] == "N" else wide[0].t()
    b = wide[1] if form[1] == "N" else wide[1].t()
    how: Attributes = {"form": form, "m": m, "n": n, "k": k, "blocks": tuple(blocks)}
    op = Op("p", "matmul", (), (), attributes={**how, "formats": ("e4m3", "e4m3")})
    bias, out = torch.ones(n), torch.full((m * n + 5,), 9.0)
    reads = [stored[0][0], stored[1][0], bias, stored[0][1], stored[1][1]]
    quantised.matmul(op, reads, [out], AT)
    assert torch.allclose(out[: m * n].view(m, n), a @ b + 1, atol=1e-5)
    assert out[m * n :].tolist() == [0] * 5


def test_rows_of_experts_begin_with_blocks_of_their_own() -> None:
    """Three rows and five, of two ranks, in blocks of four rows: one block, and two."""
    how: Attributes = {"count": 2, "even": False, "align": 4, "columns": 1}
    how |= {"formats": ("e4m3",), "scaling": POWERS, "blocks": ((4, 1),)}
    op = Op("q", "quantise", (), (), attributes=how)
    x = torch.tensor([[1.0], [2.0], [4.0], [8.0], [8.0], [8.0], [8.0], [16.0]])
    counts = torch.tensor([1, 4, 2, 1])  # of each expert, by rank
    stored = torch.full((4, 4, 1), 9, dtype=torch.uint8)
    scale = torch.zeros((4, 1), dtype=torch.uint8)
    quantised.quantise(op, [x, counts], [stored, scale], AT)
    assert scale[:3].view(-1).tolist() == [127 + 2 - 8, 127 + 3 - 8, 127 + 4 - 8]
    found = stored.view(torch.float8_e4m3fn).float().view(-1).tolist()
    assert found[:4] == [64, 128, 256, 0]
    assert found[4:12] == [256] * 4 + [256, 0, 0, 0]


@pytest.mark.parametrize(
    ("block", "scaling"), [((128, 1), BLOCKS), ((32, 1), POWERS), ((1, 128), BLOCKS)]
)
def test_casts_and_products_of_blocks_hold_no_more_than_their_scratch(
    block: tuple[int, int], scaling: str
) -> None:
    """Of 512 columns a strip of blocks of 128 rows takes a MiB in its wide precision, eight times
    the scratch; in parts of its columns it is cast to the same values and scales."""
    x, sizes = torch.randn(300, 512), (-(-300 // block[0]), -(-512 // block[1]))
    dtype = torch.uint8 if scaling == POWERS else torch.float32
    found = []
    for scratch in (1 << 17, 1 << 24):
        at = replace(AT, scratch=scratch)
        into = torch.empty(300, 512, dtype=torch.uint8), torch.empty(sizes, dtype=dtype)
        how: Attributes = {"rows": 300, "columns": 512, "scaling": scaling}
        how |= {"blocks": (block,), "formats": ("e4m3",)}
        op = Op("q", "quantise", (), (), attributes=how)
        with allocations(AT.device) as held:
            quantised.quantise(op, [x], list(into), at)
        assert held.peak_bytes <= scratch
        found.append(into)
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    at, turned = replace(AT, scratch=1 << 17), block[1] == 1
    m, n, k = (512, 512, 300) if turned else (300, 300, 512)
    how = {"m": m, "n": n, "k": k, "form": "TN" if turned else "NT"}
    how |= {"blocks": (block,) * 2, "formats": ("e4m3",) * 2}
    out = torch.empty(m, n)
    with allocations(AT.device) as held:
        quantised.product(Op("m", "matmul", (), (), attributes=how), (into, into), out, at)
    assert held.peak_bytes <= 1.25 * (1 << 17)


@pytest.mark.parametrize("scaling", [BLOCKS, POWERS])
def test_rows_bring_the_scales_of_their_own_blocks(scaling: str) -> None:
    """Of 82 columns two blocks or three, a shorter one last; copies for linears are the same, made
    of what came or of the rows that it stands for."""
    # Half of the last step of the format; of a power of two what is beyond 448 of 512 becomes 448.
    kinds = {BLOCKS: (64, 2 * 4, 16 / 448), POWERS: (32, 3, 1 / 8)}
    length, behind, share = kinds[scaling]
    x = torch.randn(5, 82, generator=torch.Generator().manual_seed(1))
    x[1] = 0
    how: Attributes = {"scaling": scaling, "columns": 82, "length": length}
    how["formats"] = ("e4m3",)
    sent, wide = torch.zeros(5, 82 + behind, dtype=torch.uint8), torch.empty(5, 82)
    blocks.quantise_rows(Op("s", "quantise_rows", (), (), attributes=how), [x], [sent], AT)
    blocks.dequantise_rows(Op("r", "dequantise_rows", (), (), attributes=how), [sent], [wide], AT)
    for row in range(5):
        for start in range(0, 82, length):
            part = x[row, start : start + length]
            away = (wide[row, start : start + length] - part).abs().max()
            assert away <= part.abs().max() * share
    assert wide[1].tolist() == [0] * 82
    for row in range(5):  # alone it begins at any byte
        one = wide[row : row + 1].clone().zero_()
        op = Op("r", "dequantise_rows", (), (), attributes=how)
        blocks.dequantise_rows(op, [sent[row : row + 1]], [one], AT)
        assert torch.equal(one, wide[row : row + 1])
    counts = torch.tensor([2, 3])
    made = []
    sources: list[tuple[torch.Tensor, Attributes]] = [(sent, {"sent": True}), (wide, {})]
    for source, more in sources:
        about: Attributes = {**how, **more, "rows": 5, "count": 2, "even": False, "align": 4}
        about["blocks"] = ((4, 1),)
        values = torch.zeros(8, 82, dtype=torch.uint8)
        scales = torch.zeros(2, 82, dtype=torch.uint8 if scaling == POWERS else torch.float32)
        op = Op("q", "quantise", (), (), attributes=about, dtype="fp32")
        quantised.quantise(op, [source, counts], [values, scales], AT)
        made.append((values, scales))
    assert all(torch.equal(*pair) for pair in zip(*made, strict=True))
    assert made[0][0].any()
