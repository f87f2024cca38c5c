"""A GPT trained by one process in plain PyTorch: what every split of it must reproduce.

It shares nothing with simgpt. The model is an `nn.Module`, autograd differentiates it, and
torch's own AdamW updates it. Weight matrices lie as (in_features, out_features), so y = x @ w + b;
the columns of `qkv` are [Q of all heads | K of all heads | V of all heads].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Weights = Mapping[str, Tensor]
Batch = tuple[Tensor, Tensor]


class Linear(nn.Module):
    """y = x @ w + b."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(rows, columns))
        self.b = nn.Parameter(torch.empty(columns))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w + self.b


class Norm(nn.Module):
    """LayerNorm over the last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(width))
        self.b = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.w.shape, self.w, self.b, eps=1e-5)


class Table(nn.Module):
    """One row of `width` numbers for each of `rows` tokens or positions."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(rows, width))


class Layer(nn.Module):
    """Pre-norm attention, then a pre-norm MLP, each added to the residual stream."""

    def __init__(self, hidden: int, ffn: int, heads: int, gelu: str) -> None:
        super().__init__()
        self.heads, self.gelu = heads, gelu
        self.norm1, self.norm2 = Norm(hidden), Norm(hidden)
        self.qkv, self.out = Linear(hidden, 3 * hidden), Linear(hidden, hidden)
        self.up, self.down = Linear(hidden, ffn), Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self.attention(self.qkv(self.norm1(x))))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate=self.gelu))

    def attention(self, qkv: Tensor) -> Tensor:
        """Causal softmax(Q K^T / sqrt(d)) V, head by head, of (batch, sequence, 3 hidden)."""
        batch, sequence, triple = qkv.shape
        size = triple // 3 // self.heads
        q, k, v = (
            part.view(batch, sequence, self.heads, size).transpose(1, 2)
            for part in qkv.chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(size)
        later = torch.ones(sequence, sequence, dtype=torch.bool, device=qkv.device).triu(1)
        mixed = scores.masked_fill(later, float("-inf")).softmax(dim=-1) @ v
        return mixed.transpose(1, 2).reshape(batch, sequence, triple // 3)


class ReferenceGPT(nn.Module):
    """GPT-2's architecture, without dropout, holding a copy of the given weights.

    The sizes are read off the weights; only the number of heads cannot be. The classifier is tied
    to the token embedding unless there is a `head.w`. `gelu` is "tanh" or "none" (exact, by erf).
    """

    def __init__(self, weights: Weights, *, heads: int, gelu: str = "tanh") -> None:
        super().__init__()
        vocab, hidden = weights["embed.w"].shape
        ffn = weights["l0.up.w"].shape[1]
        self.layers = sum(name.endswith(".qkv.w") for name in weights)
        self.embed = Table(vocab, hidden)
        self.position = Table(weights["position.w"].shape[0], hidden)
        for i in range(self.layers):
            self.add_module(f"l{i}", Layer(hidden, ffn, heads, gelu))
        self.norm = Norm(hidden)
        self.head = Table(vocab, hidden) if "head.w" in weights else self.embed
        self.to(weights["embed.w"].dtype)
        self.load_state_dict({**weights, "head.w": weights.get("head.w", weights["embed.w"])})

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, sequence, vocab) of tokens (batch, sequence)."""
        x = F.embedding(tokens, self.embed.w) + self.position.w[: tokens.shape[1]]
        for i in range(self.layers):
            x = self.get_submodule(f"l{i}")(x)
        return self.norm(x) @ self.head.w.T

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over all tokens of the batch."""
        return F.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())

    def copy_of_weights(self) -> dict[str, Tensor]:
        """The weights as they are now; a tied classifier appears as `embed.w` alone."""
        return {name: p.detach().clone() for name, p in self.named_parameters()}


def initial_weights(
    *,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    sequence: int,
    vocab: int,
    tied: bool = True,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """Random weights, the biases and norms among them, so that no error hides behind a 0 or a 1."""
    assert hidden % heads == 0, f"heads={heads} does not divide hidden={hidden}"
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for name, shape in _shapes(layers, hidden, ffn, sequence, vocab, tied):
        normal = torch.randn(shape, generator=generator, dtype=torch.float64)
        is_norm_weight = "norm" in name and name.endswith(".w")
        weights[name] = (1 + 0.1 * normal if is_norm_weight else 0.02 * normal).to(dtype)
    return weights


def _shapes(
    layers: int, hidden: int, ffn: int, sequence: int, vocab: int, tied: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "embed.w", (vocab, hidden)
    yield "position.w", (sequence, hidden)
    linears = {"qkv": (hidden, 3 * hidden), "out": (hidden, hidden)}
    linears |= {"up": (hidden, ffn), "down": (ffn, hidden)}
    for i in range(layers):
        for norm in ("norm1", "norm2"):
            yield f"l{i}.{norm}.w", (hidden,)
            yield f"l{i}.{norm}.b", (hidden,)
        for linear, shape in linears.items():
            yield f"l{i}.{linear}.w", shape
            yield f"l{i}.{linear}.b", shape[1:]
    yield "norm.w", (hidden,)
    yield "norm.b", (hidden,)
    if not tied:
        yield "head.w", (vocab, hidden)


def loss_and_gradients(
    weights: Weights, batch: Batch, *, heads: int, gelu: str = "tanh"
) -> tuple[float, dict[str, Tensor]]:
    """The loss of one batch and its gradient in every weight, neither clipped nor applied."""
    model = ReferenceGPT(weights, heads=heads, gelu=gelu)
    loss = model.loss(*batch)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def train(
    weights: Weights,
    batches: Sequence[Batch],
    *,
    heads: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
    clip: float | None = 1.0,
    gelu: str = "tanh",
) -> tuple[list[float], dict[str, Tensor]]:
    """One AdamW step per global batch: the loss before each step, and the weights after the last.

    A batch is (tokens, targets), each (sequences, sequence). Every parameter of two dimensions
    decays, tables included; biases and norms do not. Gradients are scaled by
    min(1, clip / (global norm + 1e-6)). The given weights stay as they are.
    """
    model = ReferenceGPT(weights, heads=heads, gelu=gelu)
    parameters = list(model.parameters())
    decays = {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay}
    others = {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0}
    adamw = torch.optim.AdamW([decays, others], lr=lr, betas=betas, eps=eps, foreach=False)
    losses = []
    for tokens, targets in batches:
        adamw.zero_grad()
        loss = model.loss(tokens, targets)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(parameters, clip)
        adamw.step()
        losses.append(loss.item())
    return losses, model.copy_of_weights()
