"""The fields of latent attention."""

from __future__ import annotations

from topologies.records import bounded, record


@record(kw_only=True)
class Latent:
    """Latent attention (`workload/models/latent_attention.py`), with a `kv_rank` above 0.

    Keys and values are compressed to `kv_rank` numbers, and queries to `q_rank`, if any. Queries
    and keys of a head then have `rope_width` more elements, which alone are turned by positions,
    and its values are `value_width` wide (0: as `head_width`).
    """

    q_rank: int = bounded(default=0, most=100_000)
    kv_rank: int = bounded(default=0, most=100_000)
    rope_width: int = bounded(default=0, most=10_000)
    value_width: int = bounded(default=0, most=10_000)
