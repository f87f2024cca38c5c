"""The part of a model that mixture of experts adds: which layers have experts, and their sizes.

A layer with experts has a router and many MLPs in place of one: by each token's logits over all
experts `topk` of them are chosen, whose outputs are added, each weighted by its score; `shared_ffn`
is the width of an MLP that every token passes besides. Sources: Shazeer et al. (1701.06538) for the
gated sum; Fedus et al. (2101.03961), section 2.2, for the capacity; DeepSeek-AI (2401.06066) for
shared experts; DeepSeek-AI (2412.19437), section 2.1.2, for sigmoid scores and their scale.
"""

from __future__ import annotations

from collections.abc import Sequence

from workload.model.experts import SIGMOID
from workload.model.fields import ModelFields
from workload.models.pattern import EXPERTS, mixer_of

NEEDED = ("topk", "expert_ffn")


def has_experts(gpt: ModelFields, layer: int) -> bool:
    """Whether a layer, by its number in the whole model, has experts in place of one MLP.

    The first `dense_layers` have none, and behind them only every `expert_every`-th has.

    >>> from workload.gpt import find_model
    >>> [has_experts(find_model("deepseek-v3"), layer) for layer in (2, 3)]
    [False, True]
    """
    if gpt.pattern:
        return mixer_of(gpt, layer) == EXPERTS
    if not gpt.moe.experts or layer < gpt.moe.dense_layers:
        return False
    return (layer - gpt.moe.dense_layers + 1) % gpt.moe.expert_every == 0


def layers_with_experts(gpt: ModelFields) -> int:
    """How many layers have experts."""
    if gpt.pattern:
        return gpt.pattern.count(EXPERTS)
    return (gpt.layers - gpt.moe.dense_layers) // gpt.moe.expert_every if gpt.moe.experts else 0


def routed_width(gpt: ModelFields) -> int:
    """Columns of the rows that experts work on.

    Source: NVIDIA, Nemotron 3 Super (2604.12374), LatentMoE; Megatron-Core, transformer/moe,
    moe_layer.py, `moe_latent_size`.
    """
    return gpt.moe.expert_latent or gpt.hidden


def expert_weights(gpt: ModelFields) -> int:
    """Elements of one expert's weight matrices."""
    return routed_width(gpt) * gpt.moe.expert_ffn * (gpt.mlp_bands + 1)


def weights(gpt: ModelFields, experts: int) -> int:
    """Elements of a layer's MLP with that many of its experts: with the router and shared ones, and
    the linears to latent columns and back."""
    shared = 2 * gpt.hidden * gpt.moe.expert_latent + gpt.hidden * gpt.moe.shared_ffn * (
        gpt.mlp_bands + 1
    )
    return gpt.hidden * gpt.moe.experts + shared + experts * expert_weights(gpt)


def others(gpt: ModelFields, experts: int) -> int:
    """A layer's other parameters with that many of its experts: biases of linears, and those of the
    router's choice."""
    own = gpt.moe.experts * gpt.moe.router_bias
    if not gpt.biases:
        return own
    shared = gpt.mlp_bands * gpt.moe.shared_ffn + gpt.hidden if gpt.moe.shared_ffn else 0
    each = gpt.mlp_bands * gpt.moe.expert_ffn + gpt.hidden
    return own + gpt.moe.experts + shared + experts * each


def slots(gpt: ModelFields, rows: int) -> int:
    """Rows that so many tokens of a rank send to the experts: `topk` each, or, with a capacity, the
    places that the rank's share of every expert has.

    Source: Fedus et al. (2101.03961), eq. 3: capacity = tokens / experts x capacity factor, here
    times topk (Lepikhin et al., 2006.16668, section 2.2).
    """
    return gpt.moe.experts * places(gpt, rows) if gpt.moe.capacity else rows * gpt.moe.topk


def places(gpt: ModelFields, rows: int) -> int:
    """Places for the tokens of one rank that one expert has."""
    if not gpt.moe.capacity:
        return -(-rows * gpt.moe.topk // gpt.moe.experts)
    per_mille = round(1000 * gpt.moe.capacity)
    return -(-rows * gpt.moe.topk * per_mille // (1000 * gpt.moe.experts))


def refusals(gpt: ModelFields) -> list[str]:
    """What is wrong with a model's experts, each in words that follow the model's name."""
    if not gpt.moe.experts:
        return [f"{said} needs experts" for said in gpt.given_of("moe")]
    found = [f"experts={gpt.moe.experts} needs {key}" for key in NEEDED if not gpt.value(key)]
    if gpt.moe.topk > gpt.moe.experts:
        found.append(f"topk={gpt.moe.topk} must be at most experts={gpt.moe.experts}")
    if gpt.moe.dense_layers > gpt.layers:
        found.append(f"dense_layers={gpt.moe.dense_layers} must be at most layers={gpt.layers}")
    if not 0 <= gpt.moe.capacity <= gpt.moe.experts:
        found.append(
            f"capacity={gpt.moe.capacity} must be 0 (no token is dropped) to {gpt.moe.experts}"
        )
    found += _wrong_routing(gpt)
    if gpt.moe.expert_latent and gpt.biases:
        found.append(
            f"expert_latent={gpt.moe.expert_latent} does not support biases; give biases=false"
        )
    if gpt.moe.router_scale <= 0:
        found.append(f"router_scale={gpt.moe.router_scale} must be above 0")
    return found


def _wrong_routing(gpt: ModelFields) -> list[str]:
    """What is wrong with groups, biases and the balancing loss."""
    found, groups = [], gpt.moe.router_groups
    if groups and (gpt.moe.experts % groups or not 1 <= gpt.moe.router_topk_groups <= groups):
        found.append(
            f"router_groups={groups} must divide experts={gpt.moe.experts}, and have 1 to {groups} "
            f"router_topk_groups, not {gpt.moe.router_topk_groups}"
        )
    elif groups and gpt.moe.topk > gpt.moe.experts // groups * gpt.moe.router_topk_groups:
        chosen = gpt.moe.experts // groups * gpt.moe.router_topk_groups
        found.append(
            f"topk={gpt.moe.topk} must be at most the {chosen} experts of the chosen groups"
        )
    if gpt.moe.router_topk_groups and not groups:
        found.append(f"router_topk_groups={gpt.moe.router_topk_groups} needs router_groups")
    if gpt.moe.router_bias and gpt.moe.router != SIGMOID:
        found.append(f"router_bias=true needs router=sigmoid, not {gpt.moe.router}")
    if gpt.moe.router_bias_rate <= 0:
        found.append(f"router_bias_rate={gpt.moe.router_bias_rate} must be above 0")
    if gpt.moe.balance_loss < 0:
        found.append(f"balance_loss={gpt.moe.balance_loss} must be at least 0")
    if gpt.moe.balance_loss and gpt.goldfish_k:
        found.append(
            "balance_loss is a mean over all tokens and cannot be combined with goldfish_k"
        )
    return found


def layers_of(marks: Sequence[int | bool]) -> tuple[int, int] | None:
    """How many layers stand before the first so many-th with experts, and every how manieth has
    them, as a model's `dense_layers` and `expert_every`; None where they are at no equal distance.

    >>> layers_of([0, 0, 1, 0, 1]), layers_of([1, 1, 0])
    ((1, 2), None)
    """
    those = [number for number, mark in enumerate(marks) if mark]
    every = those[1] - those[0] if len(those) > 1 else 1
    before = those[0] - every + 1 if those else -1
    if before < 0 or those != list(range(those[0], len(marks), every)):
        return None
    return before, every
