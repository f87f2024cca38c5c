"""The fields of a model, flat in texts and nested in code, and the widths that follow from them."""

from __future__ import annotations

from dataclasses import MISSING

from topologies.records import bounded, one_of, record
from workload.flat_keys import Flat, keys_of
from workload.model.attention import Attention
from workload.model.experts import Experts
from workload.model.latent import Latent
from workload.model.mamba2 import Mamba2
from workload.model.mtp import Mtp
from workload.model.packing import Packing

NORMS = ("layernorm", "rmsnorm")
GATED = ("swiglu", "clamped_swiglu")  # activations of gate and up side by side
ACTIVATIONS = ("gelu", "squared_relu", *GATED)
POSITIONS = ("learned", "rope", "alibi", "none")


@record(kw_only=True)
class ModelFields(Flat):
    """A decoder-only transformer of pre-norm layers; what is not given is as GPT-2 has it.

    Widths are in elements, `sequence` in tokens. With `tied` the classifier shares the embedding's
    table. `biases=False` leaves every bias out, a LayerNorm's too; an RMSNorm has none. With
    "swiglu" the MLP is down(silu(gate) * up), gate and up each `ffn` wide; "clamped_swiglu" is
    gpt-oss' form of it. `embedding_norm` puts a norm between the embedding and the first layer.
    `dropout` is the share of elements that training drops of the embedding, of the attention's
    probabilities and of what is added to the residual stream. With `goldfish_k` the loss leaves out
    one token in so many (Goldfish loss; 0: none), chosen by a hash of the `goldfish_h` tokens
    before it. With `pattern` each layer has the one mixer of its letter
    (`workload/models/pattern.py`). The other fields are those of parts, each a record of its own;
    a text has all of them flat, by the names of `KEYS`.
    """

    name: str
    layers: int = bounded(least=1, most=10_000)
    hidden: int = bounded(least=1, most=200_000)
    attention: Attention
    ffn: int = bounded(least=1, most=1_000_000)
    sequence: int = bounded(least=1, most=16_777_216)
    vocab: int = bounded(least=1, most=10_000_000)
    tied: bool = True
    norm: str = one_of(NORMS, default="layernorm")
    activation: str = one_of(ACTIVATIONS, default="gelu")
    positions: str = one_of(POSITIONS, default="learned")
    biases: bool = True
    norm_eps: float = 1e-5
    embedding_norm: bool = False
    dropout: float = 0.0
    goldfish_k: int = bounded(default=0, most=1_000_000)
    goldfish_h: int = bounded(default=13, most=10_000)
    moe: Experts = Experts()
    latent: Latent = Latent()
    packing: Packing = Packing()
    mtp: Mtp = Mtp()
    pattern: str = ""
    mamba2: Mamba2 = Mamba2()
    source: str = "given by the user"

    @property
    def key_heads(self) -> int:
        """How many heads of keys, and of values, there are."""
        return self.attention.kv_heads or self.attention.heads

    @property
    def width(self) -> int:
        """Width of one head of queries, and of keys."""
        own = self.attention
        return (own.head_width or self.hidden // own.heads) + self.latent.rope_width

    @property
    def context_width(self) -> int:
        """Width of what the attention core leaves of all heads."""
        latent = self.latent
        return self.attention.heads * (latent.value_width or self.width - latent.rope_width)

    @property
    def bands(self) -> tuple[int, int, int]:
        """Widths of the queries, of the keys and of the values of all heads."""
        heads = self.attention.heads
        values = self.context_width // heads * self.key_heads
        return (heads * self.width, self.key_heads * self.width, values)

    @property
    def first_bands(self) -> tuple[int, ...]:
        """Widths that stand side by side in attention's first linear."""
        return self.attention.first_bands(self.bands)

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
        return self.biases or (self.attention.qkv_bias and linear == "qkv")

    @property
    def norm_has_bias(self) -> bool:
        """Whether a norm has a bias beside its gain."""
        return self.biases and self.norm == "layernorm"


ModelFields.PARTS = {
    "attention": Attention,
    "moe": Experts,
    "latent": Latent,
    "packing": Packing,
    "mtp": Mtp,
    "mamba2": Mamba2,
}
_FOUND = keys_of(ModelFields, ModelFields.PARTS)
# Required keys first.
KEYS = dict(sorted(_FOUND.items(), key=lambda item: item[1].default is not MISSING))
ModelFields.KEYS = KEYS
MOST = {key: int(each.limits.most) for key, each in KEYS.items() if each.limits}
