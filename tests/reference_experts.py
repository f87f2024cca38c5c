"""Mixture of experts in plain PyTorch, one expert after the other. It shares nothing with simgpt.

Weight matrices lie as (in_features, out_features), those of all experts in one tensor (experts,
in_features, out_features). A shared MLP sees every token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.reference_llama import swiglu

Cut = tuple[int, int]  # how many ranks have a sequence's chunks, and how many sequences at once


def gelu(x: Tensor) -> Tensor:
    """GELU by the tanh approximation."""
    return F.gelu(x, approximate="tanh")


class Weight(nn.Module):
    """A weight of some shape, and perhaps a bias, which a state dict fills; a router's may have a
    correction, which no gradient trains."""

    def __init__(
        self, like: Tensor, bias: Tensor | None = None, correction: Tensor | None = None
    ) -> None:
        super().__init__()
        self.correction = None
        if correction is not None:
            self.correction = nn.Parameter(torch.empty(correction.shape), requires_grad=False)
        self.w = nn.Parameter(torch.empty(like.shape))
        self.b = None if bias is None else nn.Parameter(torch.empty(bias.shape))

    def forward(self, rows: Tensor, expert: int | None = None) -> Tensor:
        """The product with the weight, or that of one expert, and the bias."""
        of = slice(None) if expert is None else expert
        out = rows @ self.w[of]
        return out if self.b is None else out + self.b[of]


class Pair(nn.Module):
    """The two weights of an MLP, or of many."""

    def __init__(self, weights: Mapping[str, Tensor], name: str) -> None:
        super().__init__()
        self.up = weight(weights, f"{name}.up")
        self.down = weight(weights, f"{name}.down")


def in_chunks(rows: int, sequence: int, cut: Cut) -> Tensor:
    """The rows of sequences as ranks of context have them in turn: of each micro-batch's sequences
    chunk i and the i-th one from the end."""
    ranks, sequences = cut
    every = torch.arange(rows).view(-1, sequences, 2 * ranks, sequence // (2 * ranks))
    of_ranks = [every[:, :, [rank, 2 * ranks - 1 - rank]] for rank in range(ranks)]
    return torch.stack(of_ranks, 1).flatten()


class Experts(nn.Module):
    """Each token's `topk` experts, weighted by their scores, and the shared MLP, if any.

    Of equal logits the expert with the lower number is chosen. With a `capacity` every expert takes
    at most ceil(capacity * tokens * topk / experts) of each run of `run` tokens, the first ones,
    in the order of `in_chunks`.
    """

    balance: Tensor
    counts: Tensor

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        name: str,
        *,
        topk: int,
        router: str,
        scale: float,
        capacity: float,
        run: int,
        activation: Callable[[Tensor], Tensor] = swiglu,
        ungated: Callable[[Tensor], Tensor] = gelu,
        groups: tuple[int, int] = (0, 0),
        balanced_run: int = 0,
        cut: Cut = (1, 1),
    ) -> None:
        super().__init__()
        self.activation, self.groups, self.balanced_run = activation, groups, balanced_run
        self.ungated = ungated
        self.forget()
        self.topk, self.kind, self.scale = topk, router, scale
        self.capacity, self.run, self.cut = capacity, run, cut
        self.router = weight(weights, f"{name}.router")
        self.experts = Pair(weights, f"{name}.experts")
        self.latent = f"{name}.fc1_latent_proj.w" in weights
        if self.latent:
            self.fc1_latent_proj = weight(weights, f"{name}.fc1_latent_proj")
            self.fc2_latent_proj = weight(weights, f"{name}.fc2_latent_proj")
        self.shared = Pair(weights, f"{name}.shared") if f"{name}.shared.up.w" in weights else None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        self.look(self.router(rows))
        if self.capacity:
            order = in_chunks(len(rows), x.shape[-2], self.cut)
            out = torch.cat([self.routed(part) for part in torch.split(rows[order], self.run)])
            out = torch.zeros_like(out).index_copy(0, order, out)
        else:
            out = self.routed(rows)
        if self.shared is not None:
            out = out + self.mlp(self.shared, rows)
        return out.view(x.shape)

    def routed(self, rows: Tensor) -> Tensor:
        """The experts' part for the tokens of one run."""
        logits = self.router(rows)
        experts = logits.shape[1]
        chosen = self.chosen(logits)
        scores = self.scores(logits, chosen)
        most = math.ceil(self.capacity * len(rows) * self.topk / experts) if self.capacity else None
        rows = self.fc1_latent_proj(rows) if self.latent else rows
        out = torch.zeros_like(rows)
        for expert in range(experts):
            token, number = (chosen == expert).nonzero(as_tuple=True)
            token, number = token[:most], number[:most]
            mine = self.mlp(self.experts, rows[token], expert)
            out = out.index_add(0, token, mine * scores[token, number, None])
        return self.fc2_latent_proj(out) if self.latent else out

    def chosen(self, logits: Tensor) -> Tensor:
        """Each token's experts: of the best groups, the best first."""
        rows = (logits if self.kind != "sigmoid" else logits.sigmoid()).tolist()
        if self.router.correction is not None:
            rows = (logits.sigmoid() + self.router.correction).tolist()
        return torch.tensor([self.best(row) for row in rows])

    def best(self, row: list[float]) -> list[int]:
        """The experts of a token, given what each is preferred by."""
        experts = range(len(row))
        count, most = self.groups
        if count:
            size, used = len(row) // count, 2 if self.kind == "sigmoid" else 1
            members = [list(experts)[g * size : (g + 1) * size] for g in range(count)]
            worth = [sum(sorted((row[e] for e in own), reverse=True)[:used]) for own in members]
            kept = sorted(range(count), key=lambda g: (-worth[g], g))[:most]
            return sorted((e for g in kept for e in members[g]), key=lambda e: (-row[e], e))[
                : self.topk
            ]
        return sorted(experts, key=lambda e: (-row[e], e))[: self.topk]

    def look(self, logits: Tensor) -> None:
        """Note how often each expert was chosen, and the mean balancing loss of all runs."""
        experts, run = logits.shape[1], self.balanced_run
        each = F.one_hot(self.chosen(logits), experts).sum(1).to(logits.dtype)
        self.counts = self.counts + each.sum(0)
        if not run:
            return
        shares = logits.softmax(-1)
        if self.kind == "sigmoid":
            shares = logits.sigmoid() / logits.sigmoid().sum(-1, keepdim=True)
        losses = [
            experts * (each[i : i + run].mean(0) / self.topk * shares[i : i + run].mean(0)).sum()
            for i in range(0, len(each), run)
        ]
        self.balance = self.balance + torch.stack(losses).mean()

    def forget(self) -> None:
        """Begin a step: nothing is chosen yet."""
        self.balance, self.counts = torch.zeros(()), torch.zeros(())

    def move(self, rate: float) -> None:
        """Move the biases of selection, if there are any, by what was chosen in the step."""
        if self.router.correction is not None:
            with torch.no_grad():
                self.router.correction.add_(rate * (self.counts.mean() - self.counts).sign())

    def scores(self, logits: Tensor, chosen: Tensor) -> Tensor:
        """What the chosen experts' outputs are multiplied by."""
        if self.kind == "softmax":
            return logits.softmax(-1).gather(1, chosen) * self.scale
        if self.kind == "softmax-topk":
            return logits.gather(1, chosen).softmax(-1) * self.scale
        each = logits.gather(1, chosen).sigmoid()
        return each / each.sum(-1, keepdim=True) * self.scale

    def mlp(self, pair: Pair, rows: Tensor, expert: int | None = None) -> Tensor:
        """down(activation(up(rows))): gated where `up` is twice as wide as `down` is high."""
        inner = pair.up(rows, expert)
        gated = pair.up.w.shape[-1] == 2 * pair.down.w.shape[-2]
        active = self.activation(inner) if gated else self.ungated(inner)
        out: Tensor = pair.down(active, expert)
        return out


def weight(weights: Mapping[str, Tensor], name: str) -> Weight:
    """The module of a weight, and of the bias beside it, if there is one."""
    return Weight(weights[f"{name}.w"], weights.get(f"{name}.b"), weights.get(f"{name}.correction"))


def shapes(
    layer: str,
    hidden: int,
    experts: int,
    expert_ffn: int,
    shared_ffn: int,
    gated: bool,
    *,
    biases: bool = False,
    correction: bool = False,
    latent: int = 0,
) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's router, experts and shared MLP."""
    bands = 2 if gated else 1
    found: dict[str, tuple[int, ...]] = {
        f"{layer}.router.w": (hidden, experts),
        f"{layer}.experts.up.w": (experts, latent or hidden, bands * expert_ffn),
        f"{layer}.experts.down.w": (experts, expert_ffn, latent or hidden),
    }
    if latent:
        found[f"{layer}.fc1_latent_proj.w"] = (hidden, latent)
        found[f"{layer}.fc2_latent_proj.w"] = (latent, hidden)
    if shared_ffn:
        found[f"{layer}.shared.up.w"] = (hidden, bands * shared_ffn)
        found[f"{layer}.shared.down.w"] = (shared_ffn, hidden)
    if biases:
        for name, shape in [*found.items()]:
            found[f"{name.removesuffix('.w')}.b"] = (*shape[:-2], shape[-1])
    if correction:
        found[f"{layer}.router.correction"] = (experts,)
    return found
