"""Casts of the operands of linears for the plain model, by the rules of the formats' own papers.

It shares nothing with simgpt, and rounds by arithmetic, not by torch's casts. A tensor is what some
tokens of the batch make, in all of its width: (tensors, tokens) says which, in which order.
Sources: OCP Microscaling Formats v1.0; 2209.05433 (E4M3 and E5M2); NVIDIA Transformer Engine's user
guide; 2412.19437, section 3.3.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests import reference_four_bits

# Bits behind the point, the least exponent of a normal number, the largest number.
E4M3, E5M2 = (3, -6, 448.0), (2, -14, 57344.0)
Format = tuple[int, int, float]
TINY = 1e-12


def rounded(x: Tensor, fmt: Format) -> Tensor:
    """The nearest number of a format, of two as near the even one; beyond the largest that."""
    bits, least, most = fmt
    x = x.float().double()
    exponent = torch.frexp(x)[1] - 1
    step = torch.ldexp(torch.ones_like(x), exponent.clamp_min(least) - bits)
    return ((x / step).round() * step).clamp(-most, most)


def scaled(x: Tensor, scale: Tensor, fmt: Format) -> Tensor:
    """Values as they are after a cast and back."""
    return rounded(x / scale, fmt) * scale


def tensorwise(x: Tensor, fmt: Format) -> Tensor:
    """One scale for each of the first dimension."""
    most = x.abs().flatten(1).amax(1).float().clamp_min(TINY)
    return scaled(x, (most / fmt[2]).double()[:, None, None], fmt)


def in_blocks(x: Tensor, height: int, width: int, fmt: Format, powers: bool) -> Tensor:
    """One scale for each block of the last two dimensions."""
    tensors, rows, columns = x.shape
    height, width = min(height, rows), min(width, columns)
    assert rows % height == columns % width == 0, "blocks come out even here"
    tiles = x.reshape(tensors, rows // height, height, columns // width, width)
    most = tiles.abs().amax((2, 4), keepdim=True).clamp_min(TINY)
    if powers:
        scale = 2.0 ** (torch.floor(torch.log2(most)) - 8)
    else:
        scale = (most / fmt[2]).float().double()
    return scaled(tiles, scale, fmt).reshape(x.shape)


class Rule:
    """How the operands of one linear are cast: by a recipe's name."""

    def __init__(self, recipe: str, place: str = "", tokens: Tensor | None = None) -> None:
        self.recipe, self.place, self.tokens, self.step = recipe, place, tokens, 1
        self.scale = dict.fromkeys(("input", "weight", "gradient"), 1.0)
        self.seen = dict.fromkeys(self.scale, 0.0)
        self.history: list[dict[str, float]] = []

    @property
    def by_blocks(self) -> bool:
        return self.recipe in ("fp8-blockwise", "mxfp8", "nvfp4")

    @property
    def length(self) -> int:
        return {"mxfp8": 32, "nvfp4": 16}.get(self.recipe, 128)

    def cast(self, x: Tensor, kind: str, axis: int, expert: str = "") -> Tensor:
        """(tensors, rows, columns), summed along one of the last two: 0 or 1. Rows of an expert say
        by `expert` whose and which they are."""
        hybrid = self.recipe in ("fp8-delayed", "fp8-tensorwise")
        if self.recipe == "nvfp4":
            tokens = None if expert else self.tokens
            return reference_four_bits.cast(x, kind, axis, (self.place, expert), self.step, tokens)
        fmt = E5M2 if kind == "gradient" and hybrid else E4M3
        if self.recipe == "fp8-tensorwise":
            return tensorwise(x, fmt)
        if self.recipe == "fp8-delayed":
            self.seen[kind] = max(self.seen[kind], float(x.abs().max().float()))
            return scaled(x, torch.tensor(self.scale[kind], dtype=torch.float32).double(), fmt)
        height, width = (1, self.length) if axis else (self.length, 1)
        if kind == "weight" and self.recipe == "fp8-blockwise":
            height, width = self.length, self.length
        return in_blocks(x, height, width, fmt, self.recipe == "mxfp8")

    def update(self, weight: Tensor) -> None:
        """After a step: scales from the last 16; the weights count for the next."""
        self.step += 1
        self.history = [dict(self.seen), *self.history][:16]
        for kind in self.scale:
            most = max(seen[kind] for seen in self.history)
            largest = E5M2[2] if kind == "gradient" else E4M3[2]
            if most > 0:
                factor = torch.tensor(largest) / torch.tensor(most, dtype=torch.float32)
                self.scale[kind] = float(1 / factor)
        self.seen = {**dict.fromkeys(self.seen, 0.0), "weight": float(weight.abs().max().float())}


class Product(torch.autograd.Function):
    """x @ w with all three products of cast operands."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor, rule: Rule) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, w)
        ctx.rule = rule
        return rule.cast(x, "input", 1) @ rule.cast(w[None], "weight", 0)[0]

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        (x, w), rule = ctx.saved_tensors, ctx.rule
        back = rule.cast(grad, "gradient", 1) @ rule.cast(w[None], "weight", 1)[0].t()
        left, right = rule.cast(x, "input", 0), rule.cast(grad, "gradient", 0)
        return back, (left.transpose(1, 2) @ right).sum(0), None


product: Any = Product.apply


def in_order(parts: Tensor, tokens: Tensor, shape: torch.Size) -> Tensor:
    """What tensors of (tokens, width) hold, by the number of the token."""
    rows = parts.flatten(0, 1)
    return torch.zeros_like(rows).index_copy(0, tokens.flatten(), rows).view(*shape[:-1], -1)
