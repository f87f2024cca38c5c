"""Latent attention's queries, keys and values in plain PyTorch. It shares nothing with simgpt.

Source: DeepSeek-V2 (2405.04434), equations 37 to 47, with the norms of its released code. Weight
matrices lie as (in_features, out_features). Columns: of `q_up` [without positions | with] head by
head; of `kv_down` [compressed | key with positions]; of `kv_up` [keys of all heads | values].
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tests.reference_llama import RMSNorm, rotated

Three = tuple[Tensor, Tensor, Tensor]


class Latent(nn.Module):
    """What makes queries, keys and values of rows; all sizes but the heads are the weights'."""

    def __init__(self, weights: Mapping[str, Tensor], name: str, heads: int, base: float) -> None:
        super().__init__()
        self.heads, self.base = heads, base
        for place in ("q_down", "q_up", "kv_down", "kv_up"):
            if f"{name}.{place}.w" in weights:
                self.add_module(place, nn.Module())
                own = self.get_submodule(place)
                own.w = nn.Parameter(torch.empty(weights[f"{name}.{place}.w"].shape))
        for place in ("q_norm", "kv_norm"):
            if f"{name}.{place}.w" in weights:
                self.add_module(place, RMSNorm(weights[f"{name}.{place}.w"].shape[0]))

    def forward(self, x: Tensor) -> Three:
        """Queries, keys and values, each (batch, heads, sequence, width), of (batch, sequence,
        hidden)."""
        latent = self.q_norm(x @ self.q_down.w) if hasattr(self, "q_down") else x
        rank = self.kv_norm.w.shape[0]
        compressed, shared = (x @ self.kv_down.w).tensor_split([rank], dim=-1)
        both = self.kv_norm(compressed) @ self.kv_up.w
        with_positions = rotated(shared, self.base)
        plain = self.q_up.w.shape[1] // self.heads - shared.shape[-1]
        keys, values = both.tensor_split([self.heads * plain], dim=-1)
        of_heads = []
        for head in range(self.heads):
            q = (latent @ self.q_up.w).chunk(self.heads, dim=-1)[head]
            q = torch.cat([q[..., :plain], rotated(q[..., plain:], self.base)], dim=-1)
            k = torch.cat([keys.chunk(self.heads, dim=-1)[head], with_positions], dim=-1)
            of_heads.append((q, k, values.chunk(self.heads, dim=-1)[head]))
        q, k, v = (torch.stack(each, dim=1) for each in zip(*of_heads, strict=True))
        return q, k, v


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
