"""Under which names each parameter of a program is published."""

from __future__ import annotations

from collections.abc import Iterator

from executor.published.families import HEAD, ExpertNames, Family, family_of
from executor.published.latent import latent
from executor.published.parameter import Published
from workload.gpt import GPT
from workload.models.moe import has_experts

OF_MLP, OF_CORE = ("up", "down"), ("qkv",)


def published(gpt: GPT) -> dict[str, Published]:
    """Where each parameter of a model is published, by its name in a program."""
    family = family_of(gpt)
    found = dict(_ends(gpt, family))
    for i in range(gpt.layers):
        found |= _layer(gpt, family, i)
    return found


def _ends(gpt: GPT, family: Family) -> Iterator[tuple[str, Published]]:
    """What stands before and behind the layers."""
    model = {key: family.prefix + name for key, name in family.model.items()}
    yield "embed.w", Published((f"{model['embed.w']}.weight",), ((gpt.vocab, gpt.hidden),))
    if gpt.positions == "learned":
        table = ((gpt.sequence, gpt.hidden),)
        yield "position.w", Published((f"{model['position.w']}.weight",), table, longer=True)
    yield from _norm(gpt, "norm", model["norm"])
    if not gpt.tied:
        yield "head.w", Published((HEAD,), ((gpt.vocab, gpt.hidden),))


def _norm(gpt: GPT, ours: str, theirs: str) -> Iterator[tuple[str, Published]]:
    yield f"{ours}.w", Published((f"{theirs}.weight",), ((gpt.hidden,),))
    if gpt.norm_has_bias:
        yield f"{ours}.b", Published((f"{theirs}.bias",), ((gpt.hidden,),))


def _layer(gpt: GPT, family: Family, index: int) -> Iterator[tuple[str, Published]]:
    ours, theirs = f"l{index}.", family.prefix + family.layer.format(index)
    for key, name in family.norms.items():
        yield from _norm(gpt, ours + key, theirs + name)
    for key, name in family.head_norms.items():
        yield f"{ours}{key}.w", Published((f"{theirs}{name}.weight",), ((gpt.width,),))
    if gpt.latent.kv_rank:
        yield from latent(gpt, ours, f"{theirs}self_attn.")
    routed = family.experts if has_experts(gpt, index) else None
    if routed is not None:
        yield from _experts(gpt, routed, ours, theirs)
    left_out = (*(OF_MLP if routed else ()), *(OF_CORE if gpt.latent.kv_rank else ()))
    for key, (rows, bands) in _widths(gpt, gpt.ffn).items():
        if key in left_out:
            continue
        names = [theirs + name for name in family.linears[key]]
        widths = bands if len(names) > 1 else (sum(bands),)
        shapes = tuple((n, rows) if family.transposed else (rows, n) for n in widths)
        weights = tuple(f"{name}.weight" for name in names)
        yield f"{ours}{key}.w", Published(weights, shapes, family.transposed)
        if gpt.has_bias(key):
            biases = tuple(f"{name}.bias" for name in names)
            yield f"{ours}{key}.b", Published(biases, tuple((n,) for n in widths))


def _experts(
    gpt: GPT, routed: ExpertNames, ours: str, theirs: str
) -> Iterator[tuple[str, Published]]:
    """A layer's router, and the linears of its experts, which lie as (out, in)."""
    shape = ((gpt.moe.experts, gpt.hidden),)
    router = f"{theirs}{routed.router}"
    bias = f"{router}.{routed.bias}", (gpt.moe.experts,)
    zeros = (bias,) if routed.bias and not gpt.moe.router_bias else ()
    if gpt.moe.router_bias:
        yield f"{ours}router.correction", Published(bias[:1], bias[1:])
    yield f"{ours}router.w", Published((f"{router}.weight",), shape, True, zeros=zeros)
    if gpt.moe.shared_ffn:
        yield from _shared(gpt, routed, ours, theirs)
    widths = _widths(gpt, gpt.moe.expert_ffn)
    for key, linears in routed.linears.items():
        rows, bands = widths[key]
        each = [theirs + routed.expert.format(number) for number in range(gpt.moe.experts)]
        names = tuple(f"{expert}{name}.weight" for expert in each for name in linears)
        shapes = tuple((n, rows) for n in bands) * gpt.moe.experts
        yield f"{ours}experts.{key}.w", Published(names, shapes, True, experts=gpt.moe.experts)


def _shared(
    gpt: GPT, routed: ExpertNames, ours: str, theirs: str
) -> Iterator[tuple[str, Published]]:
    """The linears of the MLP that all tokens pass."""
    widths = _widths(gpt, gpt.moe.shared_ffn)
    for key, linears in routed.linears.items():
        rows, bands = widths[key]
        names = tuple(f"{theirs}{routed.shared}{name}.weight" for name in linears)
        yield f"{ours}shared.{key}.w", Published(names, tuple((n, rows) for n in bands), True)


def _widths(gpt: GPT, ffn: int) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Each linear's input width, and the widths side by side of its output; MLPs are `ffn` wide."""
    return {
        "qkv": (gpt.hidden, gpt.bands),
        "out": (gpt.context_width, (gpt.hidden,)),
        "up": (gpt.hidden, (ffn,) * gpt.mlp_bands),
        "down": (ffn, (gpt.hidden,)),
    }
