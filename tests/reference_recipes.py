"""The plain model with linears in 8 bits, by the rules of the formats' own papers.

It shares nothing with simgpt, and rounds by arithmetic, not by torch's casts. A tensor is what some
tokens of the batch make, in all of its width: (tensors, tokens) says which, in which order.
Sources: OCP Microscaling Formats v1.0; 2209.05433 (E4M3 and E5M2); NVIDIA Transformer Engine's user
guide; 2412.19437, section 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests import reference_experts, reference_four_bits
from tests.reference import Batch, Family, ReferenceGPT, Trained, Weights
from tests.reference_llama import swiglu
from tests.reference_parts import Linear

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

    def __init__(self, recipe: str, place: str = "") -> None:
        self.recipe, self.place, self.step = recipe, place, 1
        self.scale = dict.fromkeys(("input", "weight", "gradient"), 1.0)
        self.seen = dict.fromkeys(self.scale, 0.0)
        self.history: list[dict[str, float]] = []

    @property
    def by_blocks(self) -> bool:
        return self.recipe in ("fp8-blockwise", "mxfp8")

    @property
    def length(self) -> int:
        return 32 if self.recipe == "mxfp8" else 128

    def cast(self, x: Tensor, kind: str, axis: int) -> Tensor:
        """(tensors, rows, columns), summed along one of the last two: 0 or 1."""
        hybrid = self.recipe in ("fp8-delayed", "fp8-tensorwise")
        if self.recipe == "nvfp4":
            return reference_four_bits.cast(x, kind, axis, self.place, self.step)
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


class CastLinear(Linear):
    """A linear whose operands are cast, as tensors of these `tokens`."""

    rule: Rule
    tokens: Tensor

    def forward(self, x: Tensor) -> Tensor:
        parts = product(x.flatten(0, -2)[self.tokens], self.w, self.rule)
        out = in_order(parts, self.tokens, x.shape)
        return out if self.b is None else out + self.b


class GroupedProduct(torch.autograd.Function):
    """Each expert's rows times its weight, cast as one tensor of rows and one of weights; by
    blocks, each expert's by themselves."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor, counts: list[int], rule: Rule) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, w)
        ctx.rule, ctx.counts = rule, counts
        cast, weights = all_rows(x, counts, "input", 1, rule), all_cast(w, 0, rule)
        return torch.cat([a @ b for a, b in zip(cast, weights, strict=True)])

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        (x, w), rule, counts = ctx.saved_tensors, ctx.rule, ctx.counts
        across = all_rows(grad, counts, "gradient", 1, rule), all_cast(w, 1, rule)
        back = torch.cat([a @ b.t() for a, b in zip(*across, strict=True)])
        down = all_rows(x, counts, "input", 0, rule), all_rows(grad, counts, "gradient", 0, rule)
        return back, torch.stack([a.t() @ b for a, b in zip(*down, strict=True)]), None, None


grouped_product: Any = GroupedProduct.apply


def all_cast(w: Tensor, axis: int, rule: Rule) -> Tensor:
    """The weights of all experts, of one scale or by blocks of each."""
    if rule.by_blocks:
        return rule.cast(w, "weight", axis)
    return rule.cast(w.flatten(0, 1)[None], "weight", axis)[0].view(w.shape)


def all_rows(x: Tensor, counts: list[int], kind: str, axis: int, rule: Rule) -> list[Tensor]:
    """The rows of all experts, of one scale or by blocks of each, with zeros in the last block."""
    if not rule.by_blocks:
        return list(torch.split(rule.cast(x[None], kind, axis)[0], counts))
    found = []
    for part in torch.split(x, counts):
        filled = F.pad(part, (0, 0, 0, -len(part) % rule.length))
        cast = rule.cast(filled[None], kind, axis)[0] if len(part) else filled
        found.append(cast[: len(part)])
    return found


class CastExperts(reference_experts.Experts):
    """Experts whose operands are cast, as tensors of the rows of these `tokens`; scores are
    multiplied in before the second product. No shared MLP."""

    rules: tuple[Rule, Rule]
    tokens: Tensor

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.routed(part) for part in x.flatten(0, -2)[self.tokens]]
        return in_order(torch.stack(parts), self.tokens, x.shape)

    def routed(self, rows: Tensor) -> Tensor:
        logits = rows @ self.router.w
        experts = logits.shape[1]
        # Of equal logits the lower number first: a stable sort.
        chosen = logits.sort(dim=1, descending=True, stable=True).indices[:, : self.topk]
        scores = self.scores(logits, chosen)
        found = [(chosen == expert).nonzero(as_tuple=True) for expert in range(experts)]
        tokens = torch.cat([token for token, _ in found])
        weighted = torch.cat([scores[token, number] for token, number in found])
        counts = [len(token) for token, _ in found]
        inner = grouped_product(rows[tokens], self.experts.up.w, counts, self.rules[0])
        gated = self.experts.up.w.shape[2] == 2 * self.experts.down.w.shape[1]
        active = swiglu(inner) if gated else F.gelu(inner, approximate="tanh")
        out = grouped_product(
            active * weighted[:, None], self.experts.down.w, counts, self.rules[1]
        )
        return torch.zeros_like(rows).index_add(0, tokens, out)


def cast_in(
    model: nn.Module, recipe: str, tokens: Tensor, of_experts: Tensor
) -> Iterator[tuple[Rule, Tensor]]:
    """Have a model's linears and experts cast; their rules and weights."""
    for name, module in model.named_modules():
        made: Any = module
        if type(module) is Linear:
            made.__class__, made.tokens = CastLinear, tokens
            made.rule = Rule(recipe, f"{name}.w")
            yield made.rule, made.w
        elif type(module) is reference_experts.Experts:
            made.__class__, made.tokens = CastExperts, of_experts
            made.rules = Rule(recipe), Rule(recipe)
            yield from zip(made.rules, (made.experts.up.w, made.experts.down.w), strict=True)


def train(
    weights: Weights,
    batches: Sequence[Batch],
    *,
    recipe: str,
    tokens: Tensor,
    of_experts: Tensor,
    heads: int,
    lr: float,
    clip: float,
    family: Family,
) -> Trained:
    """One AdamW step per batch, as `tests.reference.train` has it. Each row of `tokens` are those
    whose rows are cast as one tensor, and of `of_experts` those whose experts' rows are."""
    model = ReferenceGPT(weights, heads=heads, family=family)
    rules = list(cast_in(model, recipe, tokens, of_experts))
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    losses, norms = [], []
    for batch in batches:
        adamw.zero_grad()
        loss = model.loss(*batch)
        loss.backward()  # type: ignore[no-untyped-call]
        norms.append(float(nn.utils.clip_grad_norm_(parameters, clip or math.inf)))
        adamw.step()
        for rule, weight in rules:
            rule.update(weight.detach())
        losses.append(loss.item())
    return Trained(losses, norms, model.copy_of_weights())
