"""Latent attention whose ranks of context gather what keys and values are compressed to.

Letters: c is the size of context, r the rows of a rank. In place of the keys and values of a rank's
heads the normed numbers that they are compressed to are gathered, and the part of keys that is for
positions, turned by them already. Each rank then leads all c r rows up to its own heads: c times
the FLOPs of `kv_up` on each, of which the model has one part, for a payload that does not grow with
the heads. The backward pass gathers and leads up once more. Gradients of keys and values, which
each rank has of its own queries, are led down again before they are summed over context and
scattered; the sum over x follows on a rank's own rows.
Source: no published system is known to do so; Megatron-Core, multi_latent_attention.py, gathers the
same two tensors over tensor-parallel ranks with sequence parallelism.
"""

from __future__ import annotations

from dataclasses import replace

from workload.lowering.builder import Builder
from workload.lowering.layers import core_shape, linear, norm
from workload.lowering.layers import sequence_parallel as rows
from workload.lowering.layers.context import ring
from workload.lowering.layers.mixers import attention
from workload.lowering.layers.mixers import latent_projections as latent
from workload.lowering.layers.mixers.attention import Core
from workload.lowering.layers.recomputation import in_recomputation
from workload.op import INPUT_GRAD, KEYS_EXCHANGE, WEIGHT_GRAD, Part

Keys = tuple[str, str, str]


def applies(b: Builder) -> bool:
    """Whether ranks gather so."""
    return b.plan.context.latents


def forward(b: Builder, owner: Part, queries: str, led: latent.Saved) -> Core:
    """Emit the core on a rank's queries, turned as they are, and the gathered keys and values."""
    place = f"{owner}.attention"
    keys, _, led.weights["kv_up"] = _keys(b, owner, led, "kv_up", "")
    context, sums = ring.on_gathered(b, queries, keys, attention.shape_of(b, place))
    return Core(queries, context, (sums,), place)


def backward(
    b: Builder, owner: Part, core: Core, led: latent.Saved, source: str, grad: str, *, held: bool
) -> str:
    """Emit the gradients from `grad`, that of the context; returns that of the rows `source`.

    `held` says that the recomputation's gathered weights are still there.
    """
    weights = led.weights if held else dict.fromkeys(led.weights, "")
    with in_recomputation(b):
        keys, latents, weight = _keys(b, owner, led, "kv_up.again", weights["kv_up"])
    saved = core.qkv, keys, core.context, *core.inner
    queries, d = ring.on_gathered_grad(b, saved, grad, attention.shape_of(b, core.place))
    compressed, positions = _led_down(b, owner, latents, weight, d)
    turned = [queries, positions]
    b.op("latent.turn.grad", "latent_turn_grad", turned, turned, **latent.how(b))
    positions = rows.reduce(b, "kv.positions.grad.reduce", positions, *b.shards_of("heads"))
    compressed = rows.reduce(b, "kv_up.grad.reduce", compressed, *b.shards_of("heads"))
    before, _, stats = led.keys
    norm.backward(b, "kv_norm", f"{owner}.kv_norm", (before, stats), compressed)
    return latent.into_source(b, owner, replace(led, weights=weights), source,
                              (queries, compressed, positions))  # fmt: skip


def _keys(b: Builder, owner: Part, led: latent.Saved, label: str, weight: str) -> Keys:
    """Emit all keys and values of a rank's heads; returns them, the gathered numbers that they come
    from, and the weight."""
    own = latent.linears(b)["kv_up"]
    part = rows.gather(b, f"{label}.rows", led.keys[1])
    latents = _gathered(b, f"{label}.latents", part)
    positions = _gathered(b, f"{label}.positions", led.positions)
    weight = weight or linear.gather(b, label, f"{owner}.kv_up.w", (own.k, own.n // b.grid.tp))
    count, shape = b.buffers[latents].shape[0], attention.shape_of(b)
    up = b.tensor(f"{label}.o", (count, own.n // b.grid.tp))
    _matmul(b, f"{label}.matmul", [latents, weight], up, "NN", (count, own.n // b.grid.tp, own.k))
    keys = b.tensor(f"{label}.keys", (count, sum(core_shape.bands(shape)[1:])))
    b.op(f"{label}.keys", "latent_keys", [up, positions], [keys], **latent.how(b))
    return keys, latents, weight


def _led_down(b: Builder, owner: Part, latents: str, weight: str, grad: str) -> tuple[str, str]:
    """Emit the gradients of what led up from those of all keys and values; returns a rank's rows of
    those of the compressed numbers and of the positions' part, of its heads alone."""
    own, parameter = latent.linears(b)["kv_up"], f"{owner}.kv_up.w"
    count, n = b.buffers[grad].shape[0], own.n // b.grid.tp
    up = b.tensor("kv_up.do", (count, n))
    positions = b.tensor("kv.positions.all.grad", (count, b.gpt.latent.rope_width))
    b.op("latent.keys.grad", "latent_keys_grad", [grad], [up, positions], **latent.how(b))
    out = b.tensor("kv_up.di", (count, own.k))
    _matmul(b, "kv_up.grad.input", [up, weight], out, "NT", (count, own.k, n), INPUT_GRAD)
    full = b.tensor("kv_up.dw", b.whole_tile(parameter, own.k, n), role="workspace")
    reads = [latents, up]
    _matmul(b, "kv_up.grad.weight", reads, full, "TN", (own.k, n, count), WEIGHT_GRAD)
    linear.add_gradient(b, "kv_up", parameter, full, first=b.starts)
    return _scattered(b, "kv_up.latents.grad", out), _scattered(b, "kv.positions.grad", positions)


def _matmul(
    b: Builder,
    label: str,
    reads: list[str],
    write: str,
    form: str,
    shape: tuple[int, int, int],
    purpose: str = "",
) -> None:
    """Emit a matmul on the rows of all ranks of context, of which the model has one rank's part."""
    parts = b.grid.size(*b.shards_of("positions"))
    linear.matmul(b, label, reads, write, form, shape, purpose, replicas=parts)


def _gathered(b: Builder, label: str, part: str) -> str:
    axes = b.shards_of("positions")
    count, width = b.buffers[part].shape
    every = b.tensor(f"{label}.all", (b.grid.size(*axes) * count, width), role="gathered")
    b.collective(f"{label}.gather", "all_gather", [part], [every], *axes, purpose=KEYS_EXCHANGE)
    return every


def _scattered(b: Builder, label: str, whole: str) -> str:
    own = b.tensor(f"{label}.own", (b.rows, b.buffers[whole].shape[1]))
    axes = b.shards_of("positions")
    tensors = [whole], [own]
    b.collective(f"{label}.scatter", "reduce_scatter", *tensors, *axes, purpose=KEYS_EXCHANGE)
    return own
