"""The fields of a model, and the widths that follow from them."""

from __future__ import annotations

from topologies.records import record

GATED = ("swiglu", "clamped_swiglu")  # activations of gate and up side by side


@record(kw_only=True)
class ModelFields:
    """A decoder-only transformer of pre-norm layers; what is not given is as GPT-2 has it.

    Widths are in elements, `sequence` in tokens. With `tied` the classifier shares the embedding's
    table. `kv_heads` heads of keys and values serve all `heads` queries in equal groups (0: each
    has its own); `head_width` is the width of one head (0: hidden / heads).
    `biases=False` leaves every bias out, a LayerNorm's too; an RMSNorm has none; `qkv_bias` then
    gives queries, keys and values theirs. `qk_norm` puts an RMSNorm behind each head of queries and
    of keys. `rope_scaling` is a text of `workload/models/rope_scaling.py`. With "swiglu" the MLP is
    down(silu(gate) * up), gate and up each `ffn` wide; "clamped_swiglu" is gpt-oss' form of it.
    `embedding_norm` puts a norm between the embedding and the first layer. `dropout` is the share
    of elements that training drops of the embedding, of the attention's probabilities and of what
    is added to the residual stream. With `goldfish_k` the loss leaves out one token in so many
    (Goldfish loss; 0: none), chosen by a hash of the `goldfish_h` tokens before it.
    With `experts` the layers behind the first `dense_layers`, or every `expert_every`-th of them,
    have so many MLPs of width `expert_ffn` in place of one, `topk` of which each token passes, and
    one of width `shared_ffn` for all tokens. Experts may work on `expert_latent` columns. `router`
    says how logits become scores: "softmax" over all experts, "softmax-topk" over the chosen, or
    "sigmoid", divided by the sum of the chosen; all are multiplied by `router_scale`. Of
    `router_groups` equal groups a token chooses from `router_topk_groups` alone. `router_bias` are
    biases for the choice alone, which move by `router_bias_rate` after each step; `balance_loss`
    weighs a loss of uneven use over each sequence, or each micro-batch of a replica
    (`balance_over`). With `capacity` an expert drops what is beyond so many times its even share.
    With `kv_rank` keys and values are compressed to so many numbers, and queries to `q_rank`, if
    any: latent attention. Queries and keys of a head then have `rope_width` more elements, which
    alone are turned by positions, and its values are `value_width` wide (0: as `head_width`).
    With `window` a token attends to so many tokens, its own the last of them, but in every
    `global_every`-th layer to all before it (0: in none). `sinks` are a learned logit of each head
    in the sum under its probabilities. With `document` each sequence is packed of documents of so
    many tokens, or with `documents` of those lengths ("4096+2x2048"), and a token attends to none
    of another one. With `mtp_layers` modules behind the last layer, one behind the other, predict
    further tokens, their losses weighed by `mtp_loss` in all (`workload/models/mtp.py`).
    With `pattern` each layer has the one mixer of its letter (`workload/models/hybrids/`): Mamba-2
    ones have `ssm_heads` heads of `ssm_width` columns with `ssm_state` numbers of a state each.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    sequence: int
    vocab: int
    tied: bool = True
    kv_heads: int = 0
    head_width: int = 0
    norm: str = "layernorm"
    activation: str = "gelu"
    positions: str = "learned"
    rope_base: int = 10_000
    rope_scaling: str = "none"
    biases: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    norm_eps: float = 1e-5
    embedding_norm: bool = False
    dropout: float = 0.0
    goldfish_k: int = 0
    goldfish_h: int = 13
    experts: int = 0
    topk: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    expert_latent: int = 0
    dense_layers: int = 0
    expert_every: int = 1
    router: str = "softmax"
    router_scale: float = 1.0
    router_groups: int = 0
    router_topk_groups: int = 0
    router_bias: bool = False
    router_bias_rate: float = 0.001
    balance_loss: float = 0.0
    balance_over: str = "sequence"
    capacity: float = 0.0
    q_rank: int = 0
    kv_rank: int = 0
    rope_width: int = 0
    value_width: int = 0
    window: int = 0
    global_every: int = 0
    document: int = 0
    documents: str = ""
    sinks: bool = False
    mtp_layers: int = 0
    mtp_loss: float = 0.3
    mtp_pattern: str = ""
    mtp_shared: bool = False
    pattern: str = ""
    ssm_heads: int = 0
    ssm_width: int = 0
    ssm_state: int = 0
    ssm_groups: int = 1
    ssm_conv: int = 4
    ssm_chunk: int = 128
    source: str = "given by the user"

    @property
    def key_heads(self) -> int:
        """How many heads of keys, and of values, there are."""
        return self.kv_heads or self.heads

    @property
    def width(self) -> int:
        """Width of one head of queries, and of keys."""
        return (self.head_width or self.hidden // self.heads) + self.rope_width

    @property
    def context_width(self) -> int:
        """Width of what the attention core leaves of all heads."""
        return self.heads * (self.value_width or self.width - self.rope_width)

    @property
    def bands(self) -> tuple[int, int, int]:
        """Widths of all queries, of all keys and of all values, side by side in one linear."""
        values = self.context_width // self.heads * self.key_heads
        return (self.heads * self.width, self.key_heads * self.width, values)

    @property
    def up_bands(self) -> tuple[int, ...]:
        """Widths that stand side by side in the MLP's first linear: gate and up, or one alone."""
        return (self.ffn,) * self.mlp_bands

    @property
    def mlp_bands(self) -> int:
        """How many bands an MLP's first linear has."""
        return 2 if self.activation in GATED else 1

    def has_bias(self, linear: str) -> bool:
        """Whether a layer's linear of that name in a program has a bias."""
        return self.biases or (self.qkv_bias and linear == "qkv")

    @property
    def norm_has_bias(self) -> bool:
        """Whether a norm has a bias beside its gain."""
        return self.biases and self.norm == "layernorm"
