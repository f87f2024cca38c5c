"""The fields of a mixture of experts."""

from __future__ import annotations

from topologies.records import bounded, one_of, record

SOFTMAX, SOFTMAX_OF_CHOSEN, SIGMOID = ROUTERS = "softmax", "softmax-topk", "sigmoid"
SEQUENCE, MICRO_BATCH = BALANCED = "sequence", "micro_batch"


@record(kw_only=True)
class Experts:
    """A mixture of experts (`workload/models/moe.py`), with `experts` above 0.

    The layers behind the first `dense_layers`, or every `expert_every`-th of them, have so many
    MLPs of width `expert_ffn` in place of one, `topk` of which each token passes, and one of width
    `shared_ffn` for all tokens. Experts may work on `expert_latent` columns. `router` says how
    logits become scores: "softmax" over all experts, "softmax-topk" over the chosen, or "sigmoid",
    divided by the sum of the chosen; all are multiplied by `router_scale`. Of `router_groups` equal
    groups a token chooses from `router_topk_groups` alone. `router_bias` are biases for the choice
    alone, which move by `router_bias_rate` after each step; `balance_loss` weighs a loss of uneven
    use over each sequence, or each micro-batch of a replica (`balance_over`). With `capacity` an
    expert drops what is beyond so many times its even share.
    """

    experts: int = bounded(default=0, most=100_000)
    topk: int = bounded(default=0, most=100_000)
    expert_ffn: int = bounded(default=0, most=1_000_000)
    shared_ffn: int = bounded(default=0, most=1_000_000)
    expert_latent: int = bounded(default=0, most=200_000)
    dense_layers: int = bounded(default=0, most=10_000)
    expert_every: int = bounded(default=1, least=1, most=10_000)
    router: str = one_of(ROUTERS, default=SOFTMAX)
    router_scale: float = 1.0
    router_groups: int = bounded(default=0, most=100_000)
    router_topk_groups: int = bounded(default=0, most=100_000)
    router_bias: bool = False
    router_bias_rate: float = 0.001
    balance_loss: float = 0.0
    balance_over: str = one_of(BALANCED, default=SEQUENCE)
    capacity: float = 0.0
