"""The fields of attention."""

from __future__ import annotations

from topologies.records import bounded, record

# Fields of the one linear to queries, keys and values, which latent attention does not have.
OF_FIRST_LINEAR = ("qkv_bias", "qk_norm", "output_gate")


@record(kw_only=True)
class Attention:
    """Attention of `heads` queries over the tokens before, in each layer or in those of a pattern.

    `kv_heads` heads of keys and values serve all `heads` queries in equal groups (0: each has its
    own); `head_width` is the width of one head (0: hidden / heads). `qkv_bias` gives queries, keys
    and values a bias where a model's linears have none. `qk_norm` puts an RMSNorm behind each head
    of queries and of keys. `rope_base` and `rope_scaling` (`workload/models/rope_scaling.py`) are
    of positions=rope. With `window` a token attends to so many tokens, its own the last of them,
    but in every `global_every`-th layer to all before it (0: in none). `sinks` are a learned logit
    of each head in the sum under its probabilities. With `output_gate` the core's output is
    multiplied by the sigmoid of a gate of its width, which the first linear makes beside the values
    (`workload/lowering/layers/output_gate.py`).
    """

    heads: int = bounded(least=1, most=10_000)
    kv_heads: int = bounded(default=0, most=10_000)
    head_width: int = bounded(default=0, most=10_000)
    qkv_bias: bool = False
    qk_norm: bool = False
    rope_base: int = bounded(default=10_000, least=2, most=1_000_000_000_000)
    rope_scaling: str = "none"
    window: int = bounded(default=0, most=16_777_216)
    global_every: int = bounded(default=0, most=10_000)
    sinks: bool = False
    output_gate: bool = False

    def first_bands(self, bands: tuple[int, int, int]) -> tuple[int, ...]:
        """Widths side by side in the first linear, with `bands` those of queries, keys and values
        of all heads."""
        values = self.heads * (bands[2] // (self.kv_heads or self.heads))
        return (*bands, values) if self.output_gate else bands
