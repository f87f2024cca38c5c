"""Latent attention's linears as DeepSeek's checkpoints have them.

A head's queries end with the part that positions turn, and so does what leads down to the keys;
there element 2 i is turned with 2 i + 1, in a program i with i + width/2. What leads up has each
head's keys beside its values, a program all keys before all values.
Source: transformers 5.23, modeling_deepseek_v2.py and modeling_deepseek_v3.py (`rope_interleave`).
"""

from __future__ import annotations

from collections.abc import Iterator

from executor.published.parameter import Published
from workload.gpt import GPT
from workload.models.latent_attention import up_bands

NORM_EPS = 1e-6  # of the two norms, whatever a config says


def latent(gpt: GPT, ours: str, theirs: str) -> Iterator[tuple[str, Published]]:
    """A layer's linears and norms on the way to the attention's core."""
    queries, count = gpt.bands[0], gpt.latent.kv_rank + gpt.latent.rope_width
    if gpt.latent.q_rank:
        yield _one(f"{ours}q_down", f"{theirs}q_a_proj", gpt.latent.q_rank, gpt.hidden)
        yield (
            f"{ours}q_norm.w",
            Published((f"{theirs}q_a_layernorm.weight",), ((gpt.latent.q_rank,),)),
        )
    up = "q_b_proj" if gpt.latent.q_rank else "q_proj"
    order = _queries(gpt)
    yield _one(f"{ours}q_up", theirs + up, queries, gpt.latent.q_rank or gpt.hidden, order)
    down = f"{theirs}kv_a_proj_with_mqa"
    yield _one(
        f"{ours}kv_down",
        down,
        count,
        gpt.hidden,
        _turned(gpt.latent.kv_rank, gpt.latent.rope_width),
    )
    yield (
        f"{ours}kv_norm.w",
        Published((f"{theirs}kv_a_layernorm.weight",), ((gpt.latent.kv_rank,),)),
    )
    yield _one(
        f"{ours}kv_up", f"{theirs}kv_b_proj", sum(up_bands(gpt)), gpt.latent.kv_rank, _both(gpt)
    )


def _one(
    ours: str, theirs: str, out: int, inner: int, columns: tuple[int, ...] = ()
) -> tuple[str, Published]:
    where = Published((f"{theirs}.weight",), ((out, inner),), True, columns=columns)
    return f"{ours}.w", where


def _turned(plain: int, width: int) -> tuple[int, ...]:
    """Where the columns of some plain elements, and of turned ones after them, are published."""
    return (*range(plain), *range(plain, plain + width, 2), *range(plain + 1, plain + width, 2))


def _queries(gpt: GPT) -> tuple[int, ...]:
    one = _turned(gpt.width - gpt.latent.rope_width, gpt.latent.rope_width)
    return tuple(head * gpt.width + each for head in range(gpt.attention.heads) for each in one)


def _both(gpt: GPT) -> tuple[int, ...]:
    """Where all heads' keys, and then all values, are published."""
    keys, values = (band // gpt.attention.heads for band in up_bands(gpt))
    starts = range(0, gpt.attention.heads * (keys + values), keys + values)
    own_keys = [start + each for start in starts for each in range(keys)]
    return (*own_keys, *(start + keys + each for start in starts for each in range(values)))
