"""Experts whose operands are cast: each expert's rows and weights by themselves where a recipe has
scales of blocks, of all experts as one tensor otherwise. It shares nothing with simgpt."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests import reference_experts
from tests.reference_casts import Rule, in_order, product
from tests.reference_llama import swiglu


class GroupedProduct(torch.autograd.Function):
    """Each expert's rows times its weight, cast as one tensor of rows and one of weights; by
    blocks, each expert's by themselves. `first` is the first token whose rows these are."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor, counts: list[int], first: int, rule: Rule) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, w)
        ctx.rows, ctx.rule = Rows(counts, first, rule), rule
        cast, weights = ctx.rows.cast(x, "input", 1), all_cast(w, 0, rule)
        return torch.cat([a @ b for a, b in zip(cast, weights, strict=True)])

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        (x, w), rows = ctx.saved_tensors, ctx.rows
        across = rows.cast(grad, "gradient", 1), all_cast(w, 1, ctx.rule)
        back = torch.cat([a @ b.t() for a, b in zip(*across, strict=True)])
        down = rows.cast(x, "input", 0), rows.cast(grad, "gradient", 0)
        tiles = torch.stack([a.t() @ b for a, b in zip(*down, strict=True)])
        return back, tiles, None, None, None


class SentRows(torch.autograd.Function):
    """Rows of an input as they are after they were sent in 8 bits; their gradient comes back as it
    is."""

    @staticmethod
    def forward(ctx, x: Tensor, rule: Rule) -> Tensor:  # type: ignore[no-untyped-def]
        return rule.cast(x[None], "input", 1)[0]

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        return grad, None


class ReturnedRows(torch.autograd.Function):
    """Rows as they come back; their gradient is sent in 8 bits."""

    @staticmethod
    def forward(ctx, x: Tensor, rule: Rule) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.rule = rule
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        return ctx.rule.cast(grad[None], "gradient", 1)[0], None


grouped_product: Any = GroupedProduct.apply
sent_rows: Any = SentRows.apply
returned_rows: Any = ReturnedRows.apply


def all_cast(w: Tensor, axis: int, rule: Rule) -> Tensor:
    """The weights of all experts, of one scale or by blocks of each."""
    if rule.by_blocks:
        return rule.cast(w, "weight", axis)
    return rule.cast(w.flatten(0, 1)[None], "weight", axis)[0].view(w.shape)


class Rows:
    """The rows of all experts, so many of each, made of tokens from the `first` one on."""

    def __init__(self, counts: list[int], first: int, rule: Rule) -> None:
        self.counts, self.first, self.rule = counts, first, rule

    def cast(self, x: Tensor, kind: str, axis: int) -> list[Tensor]:
        """Of one scale or by blocks of each, with zeros in the last block, of which a transform
        makes further rows that are summed over."""
        if not self.rule.by_blocks:
            return list(torch.split(self.rule.cast(x[None], kind, axis)[0], self.counts))
        found = []
        for expert, part in enumerate(torch.split(x, self.counts)):
            filled = F.pad(part, (0, 0, 0, -len(part) % self.rule.length))
            whose = f".{expert}.{self.first}"
            cast = self.rule.cast(filled[None], kind, axis, whose)[0] if len(part) else filled
            found.append(cast[: len(part)] if axis else cast)
        return found


class CastExperts(reference_experts.Experts):
    """Experts whose operands are cast, as tensors of the rows of `expert_tokens`; scores are
    multiplied in before the second product. Other linears see tensors of `tokens`. With a capacity
    each run of tokens has its own places, of which some stay empty. `narrow` rows are sent in 8
    bits."""

    narrow: bool
    rules: dict[str, Rule]
    tokens: Tensor
    expert_tokens: Tensor

    def cast_rows(self, module: reference_experts.Weight, name: str, rows: Tensor) -> Tensor:
        parts = product(rows[self.tokens], module.w, self.rules[name])
        return in_order(parts, self.tokens, rows.shape)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        taken = rows
        if self.latent:
            taken = self.cast_rows(self.fc1_latent_proj, "fc1_latent_proj", rows)
        parts = [self.sums(rows[own], taken[own], int(own[0])) for own in self.expert_tokens]
        out = in_order(torch.stack(parts), self.expert_tokens, taken.shape)
        if self.latent:
            out = self.cast_rows(self.fc2_latent_proj, "fc2_latent_proj", out)
        if self.shared is not None:
            active = self.active(self.cast_rows(self.shared.up, "shared.up", rows), self.shared)
            out = out + self.cast_rows(self.shared.down, "shared.down", active)
        return out.view(x.shape)

    def active(self, inner: Tensor, pair: reference_experts.Pair) -> Tensor:
        gated = pair.up.w.shape[-1] == 2 * pair.down.w.shape[-2]
        return swiglu(inner) if gated else self.ungated(inner)

    def sums(self, rows: Tensor, taken: Tensor, first: int) -> Tensor:
        """What experts make of tokens, the first of which is so far in the batch."""
        logits = rows @ self.router.w
        # Of equal logits the lower number first: a stable sort.
        chosen = logits.sort(dim=1, descending=True, stable=True).indices[:, : self.topk]
        scores = self.scores(logits, chosen)
        found = [self.places(chosen, expert) for expert in range(logits.shape[1])]
        tokens, numbers = (torch.cat(each) for each in zip(*found, strict=True))
        there = (tokens >= 0)[:, None]
        weighted = torch.where(there[:, 0], scores[tokens, numbers], 0.0)
        counts = [len(token) for token, _ in found]
        sent = torch.where(there, taken[tokens], 0.0)
        up, down = self.rules["experts.up"], self.rules["experts.down"]
        sent = sent_rows(sent, up) if self.narrow else sent
        inner = grouped_product(sent, self.experts.up.w, counts, first, up)
        active = self.active(inner, self.experts) * weighted[:, None]
        out = grouped_product(active, self.experts.down.w, counts, first, down)
        out = returned_rows(out, down) if self.narrow else out
        return torch.zeros_like(taken).index_add(0, tokens.clamp(min=0), out * there)

    def places(self, chosen: Tensor, expert: int) -> tuple[Tensor, Tensor]:
        """The tokens at an expert's places, and which choice of theirs it is; -1 for no token."""
        run = self.run if self.capacity else len(chosen)
        most = math.ceil(self.capacity * run * self.topk / self.router.w.shape[1])
        tokens, numbers = [], []
        for start in range(0, len(chosen), run):
            token, number = (chosen[start : start + run] == expert).nonzero(as_tuple=True)
            token = token + start
            if self.capacity:
                token, number = (
                    F.pad(each[:most], (0, max(most - len(each), 0)), value=empty)
                    for each, empty in ((token, -1), (number, 0))
                )
            tokens.append(token)
            numbers.append(number)
        return torch.cat(tokens), torch.cat(numbers)
