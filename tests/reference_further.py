"""Modules that predict further tokens, in plain PyTorch: what the reference's model adds for them.

Depth d (from 1) takes the stream behind the one before, and the embedding of the token d later than
the input, to predict the one after that. With `shared` weights all depths have the first one's.
Behind a sequence's end come its first tokens, of which no loss tells anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Depths:
    """How many, and how many layers each has."""

    count: int = 0
    layers: int = 1
    shared: bool = False
    weight: float = 0.0

    @property
    def held(self) -> int:
        """Depths with weights of their own."""
        return min(self.count, 1) if self.shared else self.count


def shapes(layers: int, hidden: int, depths: Depths) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The weights of each depth beside those of its layers and norms."""
    for depth in range(depths.held):
        yield f"l{layers + depth * depths.layers}.eh_proj.w", (2 * hidden, hidden)


def norms(layers: int, depths: Depths) -> Iterator[str]:
    """The names of their norms: two before the first layer, one behind the last."""
    for depth in range(depths.held):
        first = layers + depth * depths.layers
        yield from (f"l{first}.enorm", f"l{first}.hnorm")
        yield f"l{first + depths.layers - 1}.head_norm"


def loss(
    depths: Depths,
    run: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]],
    stream: Tensor,
    targets: Tensor,
) -> Tensor:
    """The mean over depths of their cross-entropies, over all tokens: `run` says of a depth held,
    from the stream before it and the tokens to look up, the stream behind it and its logits."""
    total = stream.new_zeros(())
    for depth in range(depths.count):
        ahead = depth + 1
        tokens = torch.cat([targets[:, depth:], targets[:, :depth]], dim=1)
        stream, logits = run(0 if depths.shared else depth, stream, tokens)
        known = logits[:, :-ahead].flatten(0, 1)
        own = F.cross_entropy(known, targets[:, ahead:].flatten(), reduction="sum")
        total = total + own / targets.numel()
    return total / depths.count
