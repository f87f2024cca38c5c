"""Layers of a hybrid in plain PyTorch: a norm, one mixer, the addition to the residual stream.

The Mamba-2 mixer steps through a sequence token by token, as its recurrence reads; the gate comes
before a norm of groups of columns, as in Megatron-Core. Weights lie as (in_features, out_features),
and the first linear's columns are [z | x | B | C | dt]. It shares nothing with simgpt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.reference_parts import Linear


@dataclass(frozen=True)
class Sizes:
    """Of a Mamba-2 layer: heads, the width of each, groups, states of a column, taps."""

    heads: int = 0
    width: int = 0
    groups: int = 1
    state: int = 0
    taps: int = 4


def squared_relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x * x, torch.zeros_like(x))


class Weight(nn.Module):
    """One tensor, and perhaps another."""

    def __init__(self, *shape: int, bias: int = 0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(shape))
        if bias:
            self.b = nn.Parameter(torch.empty(bias))


class Mamba(nn.Module):
    """The mixer, on (batch, sequence, hidden)."""

    def __init__(self, hidden: int, sizes: Sizes, eps: float) -> None:
        super().__init__()
        self.sizes, self.eps = sizes, eps
        inner, states = sizes.heads * sizes.width, sizes.groups * sizes.state
        self.in_proj = Linear(hidden, 2 * inner + 2 * states + sizes.heads, bias=False)
        self.conv = Weight(sizes.taps, inner + 2 * states, bias=inner + 2 * states)
        self.decay, self.skip, self.step = (Weight(sizes.heads) for _ in range(3))
        self.ssd_norm = Weight(inner)
        self.out_proj = Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        s = self.sizes
        inner, states = s.heads * s.width, s.groups * s.state
        z, mixed, dt = torch.split(self.in_proj(x), [inner, inner + 2 * states, s.heads], dim=-1)
        late = F.pad(mixed, (0, 0, s.taps - 1, 0))
        taken = [late[:, i : i + x.shape[1]] * self.conv.w[i] for i in range(s.taps)]
        mixed = F.silu(sum(taken) + self.conv.b)
        own, b, c = mixed[..., :inner], mixed[..., inner:-states], mixed[..., -states:]
        own = own.view(*own.shape[:2], s.heads, s.width)
        owner = torch.arange(s.heads) * s.groups // s.heads
        b, c = (each.view(*each.shape[:2], s.groups, s.state)[..., owner, :] for each in (b, c))
        dt = torch.log1p(torch.exp(dt + self.step.w))
        decay = torch.exp(-torch.exp(self.decay.w) * dt)
        state = x.new_zeros(x.shape[0], s.heads, s.width, s.state)
        outputs = []
        for t in range(x.shape[1]):
            added = (dt[:, t, :, None] * own[:, t])[..., None] * b[:, t, :, None]
            state = decay[:, t, :, None, None] * state + added
            outputs.append((state * c[:, t, :, None]).sum(-1) + self.skip.w[:, None] * own[:, t])
        y = torch.stack(outputs, 1).flatten(2) * z * torch.sigmoid(z)
        grouped = y.view(*y.shape[:2], s.groups, -1)
        normal = grouped / torch.sqrt(grouped.pow(2).mean(-1, keepdim=True) + self.eps)
        out: Tensor = self.out_proj(normal.flatten(2) * self.ssd_norm.w)
        return out


def mixer_shapes(
    layer: str, mixer: str, hidden: int, linears: Mapping[str, tuple[int, int]], sizes: Sizes
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The weights of a layer by its letter: those of experts come besides."""
    yield f"{layer}.{'norm1' if mixer in 'M*' else 'norm2'}.w", (hidden,)
    for name in {"*": ("qkv", "out"), "-": ("up", "down")}.get(mixer, ()):
        yield f"{layer}.{name}.w", linears[name]
    if mixer == "M":
        inner, states = sizes.heads * sizes.width, sizes.groups * sizes.state
        yield f"{layer}.in_proj.w", (hidden, 2 * inner + 2 * states + sizes.heads)
        yield f"{layer}.conv.w", (sizes.taps, inner + 2 * states)
        yield f"{layer}.conv.b", (inner + 2 * states,)
        for name in ("decay", "skip", "step"):
            yield f"{layer}.{name}.w", (sizes.heads,)
        yield f"{layer}.ssd_norm.w", (inner,)
        yield f"{layer}.out_proj.w", (inner, hidden)
