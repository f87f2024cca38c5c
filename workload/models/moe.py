"""The part of a model that mixture of experts adds: which layers have experts, and their sizes.

A layer with experts has a router and many MLPs in place of one: by each token's logits over all
experts `topk` of them are chosen, whose outputs are added, each weighted by its score; `shared_ffn`
is the width of an MLP that every token passes besides. Sources: Shazeer et al. (1701.06538) for the
gated sum; Fedus et al. (2101.03961), section 2.2, for the capacity; DeepSeek-AI (2401.06066) for
shared experts; DeepSeek-AI (2412.19437), section 2.1.2, for sigmoid scores and their scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from workload.models.hybrids.pattern import EXPERTS, mixer_of
from workload.models.model_fields import ModelFields

SOFTMAX, SOFTMAX_OF_CHOSEN, SIGMOID = ROUTERS = "softmax", "softmax-topk", "sigmoid"
SEQUENCE, MICRO_BATCH = BALANCED = "sequence", "micro_batch"
NEEDED = ("topk", "expert_ffn")
ONLY_WITH_EXPERTS = (
    *NEEDED,
    "shared_ffn",
    "expert_latent",
    "dense_layers",
    "expert_every",
    "router",
    "router_scale",
    "router_groups",
    "router_topk_groups",
    "router_bias",
    "balance_loss",
    "capacity",
)


def has_experts(gpt: ModelFields, layer: int) -> bool:
    """Whether a layer, by its number in the whole model, has experts in place of one MLP.

    The first `dense_layers` have none, and behind them only every `expert_every`-th has.

    >>> from workload.gpt import find_model
    >>> [has_experts(find_model("deepseek-v3"), layer) for layer in (2, 3)]
    [False, True]
    """
    if gpt.pattern:
        return mixer_of(gpt, layer) == EXPERTS
    if not gpt.experts or layer < gpt.dense_layers:
        return False
    return (layer - gpt.dense_layers + 1) % gpt.expert_every == 0


def layers_with_experts(gpt: ModelFields) -> int:
    """How many layers have experts."""
    if gpt.pattern:
        return gpt.pattern.count(EXPERTS)
    return (gpt.layers - gpt.dense_layers) // gpt.expert_every if gpt.experts else 0


def routed_width(gpt: ModelFields) -> int:
    """Columns of the rows that experts work on.

    Source: NVIDIA, Nemotron 3 Super (2604.12374), LatentMoE; Megatron-Core, transformer/moe,
    moe_layer.py, `moe_latent_size`.
    """
    return gpt.expert_latent or gpt.hidden


def expert_weights(gpt: ModelFields) -> int:
    """Elements of one expert's weight matrices."""
    return routed_width(gpt) * gpt.expert_ffn * (gpt.mlp_bands + 1)


def weights(gpt: ModelFields, experts: int) -> int:
    """Elements of a layer's MLP with that many of its experts: with the router and shared ones, and
    the linears to latent columns and back."""
    shared = 2 * gpt.hidden * gpt.expert_latent + gpt.hidden * gpt.shared_ffn * (gpt.mlp_bands + 1)
    return gpt.hidden * gpt.experts + shared + experts * expert_weights(gpt)


def biases(gpt: ModelFields, experts: int) -> int:
    """Elements of the biases of all layers' linears, with so many experts where there are any."""
    into = gpt.layers * (sum(gpt.bands) if gpt.has_bias("qkv") else 0)
    if not gpt.biases:
        return into
    shared = gpt.mlp_bands * gpt.shared_ffn + gpt.hidden if gpt.shared_ffn else 0
    each = gpt.mlp_bands * gpt.expert_ffn + gpt.hidden
    routed, dense = gpt.experts + shared + experts * each, sum(gpt.up_bands) + gpt.hidden
    count = layers_with_experts(gpt)
    return into + gpt.layers * gpt.hidden + count * routed + (gpt.layers - count) * dense


def slots(gpt: ModelFields, rows: int) -> int:
    """Rows that so many tokens of a rank send to the experts: `topk` each, or, with a capacity, the
    places that the rank's share of every expert has.

    Source: Fedus et al. (2101.03961), eq. 3: capacity = tokens / experts x capacity factor, here
    times topk (Lepikhin et al., 2006.16668, section 2.2).
    """
    return gpt.experts * places(gpt, rows) if gpt.capacity else rows * gpt.topk


def places(gpt: ModelFields, rows: int) -> int:
    """Places for the tokens of one rank that one expert has."""
    if not gpt.capacity:
        return -(-rows * gpt.topk // gpt.experts)
    per_mille = round(1000 * gpt.capacity)
    return -(-rows * gpt.topk * per_mille // (1000 * gpt.experts))


def refusals(gpt: ModelFields) -> list[str]:
    """What is wrong with a model's experts, each in words that follow the model's name."""
    if not gpt.experts:
        usual = {field.name: field.default for field in fields(gpt)}
        given = [key for key in ONLY_WITH_EXPERTS if getattr(gpt, key) != usual[key]]
        return [f"{key}={getattr(gpt, key)} needs experts" for key in given]
    found = [f"experts={gpt.experts} needs {key}" for key in NEEDED if not getattr(gpt, key)]
    if gpt.topk > gpt.experts:
        found.append(f"topk={gpt.topk} must be at most experts={gpt.experts}")
    if gpt.dense_layers > gpt.layers:
        found.append(f"dense_layers={gpt.dense_layers} must be at most layers={gpt.layers}")
    if gpt.expert_every < 1:
        found.append(f"expert_every={gpt.expert_every} must be at least 1")
    if not 0 <= gpt.capacity <= gpt.experts:
        found.append(f"capacity={gpt.capacity} must be 0 (no token is dropped) to {gpt.experts}")
    found += _wrong_routing(gpt)
    if gpt.expert_latent and gpt.biases:
        found.append(
            f"expert_latent={gpt.expert_latent} does not support biases; give biases=false"
        )
    if gpt.router_scale <= 0:
        found.append(f"router_scale={gpt.router_scale} must be above 0")
    return found


def _wrong_routing(gpt: ModelFields) -> list[str]:
    """What is wrong with groups, biases and the balancing loss."""
    found, groups = [], gpt.router_groups
    if groups and (gpt.experts % groups or not 1 <= gpt.router_topk_groups <= groups):
        found.append(
            f"router_groups={groups} must divide experts={gpt.experts}, and have 1 to {groups} "
            f"router_topk_groups, not {gpt.router_topk_groups}"
        )
    elif groups and gpt.topk > gpt.experts // groups * gpt.router_topk_groups:
        chosen = gpt.experts // groups * gpt.router_topk_groups
        found.append(f"topk={gpt.topk} must be at most the {chosen} experts of the chosen groups")
    if gpt.router_topk_groups and not groups:
        found.append(f"router_topk_groups={gpt.router_topk_groups} needs router_groups")
    if gpt.router_bias and gpt.router != SIGMOID:
        found.append(f"router_bias=true needs router=sigmoid, not {gpt.router}")
    if gpt.router_bias_rate <= 0:
        found.append(f"router_bias_rate={gpt.router_bias_rate} must be above 0")
    if gpt.balance_loss < 0:
        found.append(f"balance_loss={gpt.balance_loss} must be at least 0")
    if gpt.balance_loss and gpt.goldfish_k:
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
