"""The plain model with linears in 8 or 4 bits (`reference_casts.py`, `reference_four_bits.py`) and
experts (`reference_cast_experts.py`), trained. It shares nothing with simgpt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tests import reference_experts
from tests.reference import Batch, Family, ReferenceGPT, Trained, Weights
from tests.reference_cast_experts import CastExperts
from tests.reference_casts import Rule, in_order, product
from tests.reference_parts import Linear


class CastLinear(Linear):
    """A linear whose operands are cast, as tensors of these `tokens`."""

    rule: Rule
    tokens: Tensor

    def forward(self, x: Tensor) -> Tensor:
        parts = product(x.flatten(0, -2)[self.tokens], self.w, self.rule)
        out = in_order(parts, self.tokens, x.shape)
        return out if self.b is None else out + self.b


def cast_in(
    model: nn.Module,
    recipe: str,
    tokens: Tensor,
    of_experts: Tensor,
    *,
    shares: bool = True,
    narrow: bool = False,
) -> Iterator[tuple[Rule, Tensor]]:
    """Have a model's linears and experts cast; their rules and weights."""
    for name, module in model.named_modules():
        made: Any = module
        if type(module) is Linear:
            made.__class__, made.tokens = CastLinear, tokens
            made.rule = Rule(recipe, f"{name.replace('mixer.', '')}.w", tokens)
            yield made.rule, made.w
        elif type(module) is reference_experts.Experts:
            made.__class__, made.tokens, made.expert_tokens = CastExperts, tokens, of_experts
            made.narrow = narrow
            layer = name.rpartition(".")[0]
            found = {each: weight for each, weight in made.named_parameters() if weight.ndim > 1}
            weights = {each.removesuffix(".w"): weight for each, weight in found.items()}
            rules = {each: Rule(recipe, f"{layer}.{each}.w", tokens) for each in weights}
            if shares and made.latent and "shared.down" in rules:
                # Both have the layer's gradient, which is cast once, for the first of them, unless
                # one has it of a rank's own rows.
                rules["shared.down"].place = rules["fc2_latent_proj"].place
            made.rules = rules
            yield from ((rules[each], weights[each]) for each in weights if each != "router")


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
    shares: bool = True,
    narrow: bool = False,
) -> Trained:
    """One AdamW step per batch, as `tests.reference.train` has it. Each row of `tokens` are those
    whose rows are cast as one tensor, and of `of_experts` those whose experts' rows are, which are
    sent in 8 bits if they are `narrow`."""
    model = ReferenceGPT(weights, heads=heads, family=family)
    rules = list(cast_in(model, recipe, tokens, of_experts, shares=shares, narrow=narrow))
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
