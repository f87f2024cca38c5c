"""Greedy generation with trained weights, in plain torch: GPT-2's forward pass, keys and values
kept."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from workload.gpt import GPT

Weights = Mapping[str, torch.Tensor]


class Decoder:
    """A model of GPT-2's kind on whole weights, named as programs name them.

    It is given the tokens of a batch of sequences from left to right, all of the prefix at once and
    then one a time, and keeps what attention needs of them.
    """

    def __init__(self, weights: Weights, gpt: GPT) -> None:
        self._weights, self._gpt = weights, gpt
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._done = 0

    @torch.no_grad()
    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch, new, vocab) behind each of the new tokens (batch, new)."""
        first, self._done = self._done, self._done + tokens.shape[1]
        assert first == 0 or tokens.shape[1] == 1, "after the prefix tokens come one by one"
        held = self._weights
        x = held["embed.w"][tokens] + held["position.w"][first : self._done]
        for layer in range(self._gpt.layers):
            name = f"l{layer}"
            x = x + self._linear(f"{name}.out", self._attention(layer, self._norm(x, name, 1)))
            up = self._linear(f"{name}.up", self._norm(x, name, 2))
            x = x + self._linear(f"{name}.down", F.gelu(up, approximate="tanh"))
        table = held["embed.w" if self._gpt.tied else "head.w"]
        return self._norm(x, "norm") @ table.T

    def _attention(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        heads, width = self._gpt.attention.heads, self._gpt.width
        parts = self._linear(f"l{layer}.qkv", x).view(*x.shape[:-1], 3, heads, width)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        if layer == len(self._kept):
            self._kept.append((k, v))
        else:
            before = self._kept[layer]
            k, v = (torch.cat(pair, dim=2) for pair in zip(before, (k, v), strict=True))
            self._kept[layer] = k, v
        whole = q.shape[2] == k.shape[2]
        return F.scaled_dot_product_attention(q, k, v, is_causal=whole).transpose(1, 2).flatten(2)

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        out = x @ self._weights[f"{name}.w"]
        bias = self._weights.get(f"{name}.b")
        return out if bias is None else out + bias

    def _norm(self, x: torch.Tensor, name: str, number: int = 0) -> torch.Tensor:
        name = f"{name}.norm{number}" if number else name
        gain = self._weights[f"{name}.w"]
        bias = self._weights.get(f"{name}.b")
        return F.layer_norm(x, gain.shape, gain, bias, eps=self._gpt.norm_eps)


def greedy(weights: Weights, gpt: GPT, prefixes: torch.Tensor, count: int) -> torch.Tensor:
    """The most likely token, `count` times in turn, after each of the prefixes (batch, tokens)."""
    decoder, given, found = Decoder(weights, gpt), prefixes, []
    for _ in range(count):
        given = decoder.logits(given)[:, -1:].argmax(-1)
        found.append(given)
    return torch.cat(found, dim=1)


def leading(generated: torch.Tensor, expected: torch.Tensor) -> list[int]:
    """How many tokens of each row are as expected before the first that is not."""
    right = generated == expected
    return [int(count) for count in right.cumprod(1).sum(1)]
