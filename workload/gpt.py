"""The model: a GPT's shape, its parameter count and its FLOPs by the published formulas."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import Any

from topologies.files.reading import shipped_toml
from topologies.records import record
from workload.errors import ModelError
from workload.models import latent_attention, moe, mtp, windows
from workload.models.field_checks import wrong_fields
from workload.models.field_limits import CHOICES, GATED, LEAST, MOST
from workload.models.hybrids import counts
from workload.models.spelling import nearest, without_ends, words_of


@record(kw_only=True)
class GPT:
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

    def __post_init__(self) -> None:
        for key, least in LEAST.items():
            if getattr(self, key) < least:
                raise self._wrong(f"{key}={getattr(self, key)} must be at least {least}")
            if getattr(self, key) > MOST[key]:
                raise self._wrong(f"{key}={getattr(self, key)} must be at most {MOST[key]:,}")
        for key, allowed in CHOICES.items():
            if getattr(self, key) not in allowed:
                raise self._wrong(f"{key}={getattr(self, key)!r} must be {' or '.join(allowed)}")
        if not self.head_width and self.hidden % self.heads:
            raise self._wrong(f"heads={self.heads} does not divide hidden={self.hidden}")
        if self.heads % self.key_heads:
            raise self._wrong(f"kv_heads={self.kv_heads} does not divide heads={self.heads}")
        for wrong in wrong_fields(self, MOST):
            raise self._wrong(wrong)

    def _wrong(self, what: str) -> ModelError:
        return ModelError(f"{self.name}: {what}")

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

    @property
    def parameters(self) -> int:
        """Trained parameters, exactly.

        Source: Narayanan et al. (SC21), eq. 2: 12 L h^2 (1 + 13/(12 h) + (V + s)/(12 L h)) for
        GPT-2's layer with ffn = 4 h; here with any bands of the linears, and with the last norm's
        2 h that the formula leaves out.
        """
        h = self.hidden
        norm = h * (2 if self.norm_has_bias else 1)
        norms = self.layers * (2 * norm + 2 * self.width * self.qk_norm)
        norms = counts.small_parameters(self, norm) if self.pattern else norms
        weights = self._weights(self.experts) + moe.biases(self, self.experts) + norms
        weights += self.layers * self.heads * self.sinks
        weights += moe.layers_with_experts(self) * self.experts * self.router_bias
        weights += self.layers * latent_attention.norm_width(self)
        tables = self.vocab * (1 if self.tied else 2)
        tables += self.sequence if self.positions == "learned" else 0
        ends = tables * h + norm * (2 if self.embedding_norm else 1)
        return weights + ends + mtp.parameters(self)

    def model_flops(self, batch: int) -> int:
        """FLOPs of one step of `batch` sequences, without recomputation.

        Source: Narayanan et al. (SC21), eq. 3 without its recomputation:
        72 B s L h^2 (1 + s/(6 h) + V/(12 L h)) for GPT-2's layer with ffn = 4 h. Attention counts
        the whole square, of all query heads; a window so many keys for each query.
        """
        per_token = self._layers_flops_per_token + self._head_flops_per_token
        return int(3 * batch * self.sequence * per_token) + mtp.model_flops(self, batch)

    def hardware_flops(self, batch: int) -> int:
        """FLOPs of one step with every layer recomputed once in the backward pass.

        Source: Narayanan et al. (SC21), eq. 3: 96 B s L h^2 (1 + s/(6 h) + V/(16 L h)). This is the
        numerator of every "% of peak" that AxoNN publishes.
        """
        again = int(batch * self.sequence * self._layers_flops_per_token)
        return self.model_flops(batch) + again + mtp.recomputed_flops(self, batch)

    def _weights(self, experts_each: int) -> int:
        """Elements of all layers' weight matrices, with that many experts where there are any."""
        if self.pattern:
            return counts.weights(self, experts_each)
        into = latent_attention.weights(self) if self.kv_rank else self.hidden * sum(self.bands)
        attention = into + self.hidden * self.context_width
        dense = self.hidden * (sum(self.up_bands) + self.ffn)
        with_experts = moe.layers_with_experts(self)
        mlps = with_experts * moe.weights(self, experts_each)
        return self.layers * attention + (self.layers - with_experts) * dense + mlps

    @property
    def active_parameters(self) -> int:
        """The parameters that one token passes: of the experts `topk`, and of what predicts further
        tokens none."""
        passed, every = (self._weights(n) + moe.biases(self, n) for n in (self.topk, self.experts))
        return self.parameters + passed - every - mtp.parameters(self)

    @property
    def _layers_flops_per_token(self) -> int | Fraction:
        attention = 2 * windows.keys_of_layers(self) * (self.bands[0] + self.context_width)
        return 2 * self._weights(self.topk) + attention + counts.flops_of_scans(self)

    @property
    def _head_flops_per_token(self) -> int:
        return 2 * self.hidden * self.vocab


def model_names() -> list[str]:
    """The presets' names, family by family."""
    return list(_presets())


def find_model(name: str) -> GPT:
    """The preset of that name in any usual spelling; a ModelError names the nearest ones if there
    is none.

    >>> find_model("meta-llama/Llama-3.1-70B").name
    'llama-3.1-70b'
    """
    presets = _presets()
    words, named = words_of(name), _spellings()
    known = presets.get(name) or named.get(words) or named.get(without_ends(words))
    if known is not None:
        return known
    raise ModelError(f"unknown model {name!r}; {nearest(name, presets)}")


def beyond_preset(name: str) -> tuple[str, ...]:
    """What a preset's model has beyond the fields of `GPT`, in the words of `Described.beyond`.

    >>> beyond_preset("nemotron-4-15b")
    ('squared_relu',)
    """
    families = _families().values()
    return next(tuple(each.get("beyond", ())) for each in families if name in each["models"])


@cache
def _families() -> Mapping[str, Any]:
    return shipped_toml("workload", "models.toml")


@cache
def _presets() -> dict[str, GPT]:
    return {
        name: _preset(name, shape, family)
        for family in _families().values()
        for name, shape in family["models"].items()
    }


@cache
def _spellings() -> dict[tuple[str, ...], GPT]:
    """Presets by the words of their names, and of the other names that a family's table gives."""
    presets, families = _presets(), _families()
    others = {n: of for family in families.values() for n, of in family.get("also", {}).items()}
    names = {name: name for name in presets} | others
    return {words_of(name): presets[preset] for name, preset in names.items()}


def _preset(name: str, shape: list[int] | dict[str, Any], family: dict[str, Any]) -> GPT:
    """A list is [layers, hidden, heads] and perhaps the sequence, a table GPT's keys."""
    if isinstance(shape, list):
        shape = dict(zip(("layers", "hidden", "heads", "sequence"), shape, strict=False))
    given = {"ffn": 4 * shape["hidden"], **family["defaults"], **shape}
    return GPT(name=name, source=family["source"], **given)
