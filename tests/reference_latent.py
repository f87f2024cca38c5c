"""Latent attention's queries, keys and values in plain PyTorch. It shares nothing with simgpt.

Source: DeepSeek-V2 (2405.04434), equations 37 to 47, with the norms of its released code. Weight
matrices lie as (in_features, out_features). Columns: of `q_up` [without positions | with] head by
head; of `kv_down` [compressed | key with positions]; of `kv_up` [keys of all heads | values].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tests.reference_llama import RMSNorm, Scaling, rotated

Three = tuple[Tensor, Tensor, Tensor]


class Matrix(nn.Module):
    """A weight `w`, and nothing else."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(shape))


class Latent(nn.Module):
    """What makes queries, keys and values of rows; all sizes but the heads are the weights'."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        name: str,
        heads: int,
        base: float,
        scaling: Scaling | None,
        eps: float,
    ) -> None:
        super().__init__()
        self.heads, self.base, self.scaling = heads, base, scaling
        self.compresses_queries = f"{name}.q_down.w" in weights
        down = ("q_down", "q_norm") if self.compresses_queries else ()
        for place in (*down, "q_up", "kv_down", "kv_norm", "kv_up"):
            shape = weights[f"{name}.{place}.w"].shape
            norm = place.endswith("norm")
            self.add_module(place, RMSNorm(shape[0], eps) if norm else Matrix(shape))

    def forward(self, x: Tensor) -> Three:
        """Queries, keys and values, each (batch, heads, sequence, width), of (batch, sequence,
        hidden)."""
        part: Any = self.get_submodule
        latent = part("q_norm")(x @ part("q_down").w) if self.compresses_queries else x
        queries, rank = latent @ part("q_up").w, len(part("kv_norm").w)
        compressed, shared = (x @ part("kv_down").w).tensor_split([rank], dim=-1)
        both = part("kv_norm")(compressed) @ part("kv_up").w
        with_positions = rotated(shared, self.base, self.scaling)
        plain = queries.shape[-1] // self.heads - shared.shape[-1]
        keys, values = both.tensor_split([self.heads * plain], dim=-1)
        of_heads = []
        for head in range(self.heads):
            q = queries.chunk(self.heads, dim=-1)[head]
            turned = rotated(q[..., plain:], self.base, self.scaling)
            q = torch.cat([q[..., :plain], turned], dim=-1)
            k = torch.cat([keys.chunk(self.heads, dim=-1)[head], with_positions], dim=-1)
            of_heads.append((q, k, values.chunk(self.heads, dim=-1)[head]))
        q, k, v = (torch.stack(each, dim=1) for each in zip(*of_heads, strict=True))
        return q * (1.0 if self.scaling is None else self.scaling.of_scores), k, v


def shapes(
    layer: str,
    hidden: int,
    heads: int,
    *,
    q_rank: int,
    kv_rank: int,
    head_width: int,
    rope_width: int,
    value_width: int,
) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's linears and norms on the way to the core."""
    found: dict[str, tuple[int, ...]] = {}
    if q_rank:
        found |= {f"{layer}.q_down.w": (hidden, q_rank), f"{layer}.q_norm.w": (q_rank,)}
    found[f"{layer}.q_up.w"] = (q_rank or hidden, heads * (head_width + rope_width))
    found[f"{layer}.kv_down.w"] = (hidden, kv_rank + rope_width)
    found[f"{layer}.kv_norm.w"] = (kv_rank,)
    found[f"{layer}.kv_up.w"] = (kv_rank, heads * (head_width + value_width))
    return found
