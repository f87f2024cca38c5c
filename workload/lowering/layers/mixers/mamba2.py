"""Mamba-2 as a layer's mixer: a linear in, a convolution, the scan, a norm of groups, a linear out.

Letters as in `workload/models/mamba2.py`. The linear in has z, x, B, C and dt side by side,
each split over x by heads or groups, so that everything up to the linear out works on a rank's own
heads and groups alone; what y computes in copies carries `replicas`.

Where context splits each sequence, its ranks trade tokens of all these heads for all tokens of a
part of them in front of the convolution, and back behind the gate, so that the norm and both
linears work on a rank's own tokens. Numbers of heads and taps stay whole; a rank uses, and has a
gradient of, those of its part.
Source: NVIDIA/Megatron-LM, megatron/core/ssm/mamba_context_parallel.py.
Not modelled: its five exchanges of z, x, B, C and dt, where here is one, and its further copy to
sort chunks; copies of groups where there are fewer than ranks.

Kept for the backward pass are the first linear's output, the scan's output before its gate and
behind it, and the norm's; the convolution runs once more there, and the scan's states are made
again. Source: state-spaces/mamba, mamba_ssm/ops/triton/ssd_combined.py
(MambaSplitConv1dScanCombinedFn), which Megatron-Core calls (megatron/core/ssm/mamba_mixer.py).
Source of the algorithm: Dao and Gu, Mamba-2 (2405.21060), sections 6 and 7.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from topologies.records import record
from workload.grid import Axes
from workload.layout import DECAYS, ONES, STEPS, TAPS, Layout
from workload.lowering.builder import Builder
from workload.lowering.layers import linear
from workload.lowering.layers.context import ulysses
from workload.lowering.layers.linear import Linear
from workload.lowering.layers.mixer import Kept, Mixer, linear_grad
from workload.models import mamba2
from workload.op import Part

OF_HEADS = {"decay": DECAYS, "skip": ONES, "step": STEPS}  # numbers of a head: how they begin
OF_TAPS = ("conv.w", "conv.b")
NORM = "ssd_norm"


@record
class Saved:
    """Names of what the forward leaves behind: the first linear's output, as the scan reads it, the
    scan's output before and behind its gate, and the norm's output and statistics."""

    made: str
    scanned: str
    gated: str
    normed: str
    stats: str


def linears(b: Builder) -> dict[str, Linear]:
    """The linears in and out."""
    hidden, inner = b.gpt.hidden, mamba2.inner(b.gpt)
    return {
        "in_proj": Linear("in_proj", hidden, mamba2.bands(b.gpt)),
        "out_proj": Linear("out_proj", inner, (hidden,), transposed=True),
    }


def declare(b: Builder, owner: Part) -> None:
    """Declare the parameters, in the order in which they are used."""
    linear.declare(b, linears(b)["in_proj"], owner)
    bands = mamba2.conv_bands(b.gpt)
    for name, shape in zip(OF_TAPS, ((b.gpt.mamba2.conv, sum(bands)), (sum(bands),)), strict=True):
        split: tuple[Axes, ...] = (*((),) * (len(shape) - 1), b.shards_of("heads"))
        _parameter(b, f"{owner}.{name}", owner, Layout(shape, shape, split, bands, starts=TAPS))
    for name, starts in OF_HEADS.items():
        _parameter(b, f"{owner}.{name}.w", owner, _split((b.gpt.mamba2.heads,), b, starts))
    _parameter(b, f"{owner}.{NORM}.w", owner, _split((mamba2.inner(b.gpt),), b, ONES))
    linear.declare(b, linears(b)["out_proj"], owner)


def _parameter(b: Builder, name: str, owner: Part, layout: Layout) -> None:
    b.parameter(name, owner, layout, sharded=False)


def _split(shape: tuple[int], b: Builder, starts: str) -> Layout:
    return Layout(shape, shape, (b.shards_of("heads"),), starts=starts)


def forward(
    b: Builder, owner: Part, normed: str, weights: dict[str, str], *, whole: bool
) -> tuple[str, Saved]:
    """Emit the mixer on the rows `normed`; returns the output's name and what is kept."""
    own, weights["in_proj"] = linear.forward(b, linears(b)["in_proj"], owner, normed)
    made = _to_tokens(b, own, "ssd.in", mamba2.bands(b.gpt))
    convolved = _convolve(b, owner, "conv", made)
    how, inner = shape_of(b), mamba2.inner(b.gpt)
    shape = (how["rows"], how["heads"] * how["width"])
    scanned, gated = (b.tensor(f"ssd.{each}", shape) for each in ("o", "gated"))
    reads = [convolved, made, *(f"{owner}.{each}.w" for each in OF_HEADS)]
    nbytes = _scan_bytes(b, reads, scanned) + b.nbytes(gated)
    flops = mamba2.scan_flops(b.gpt) * b.rows // b.grid.tp
    about: dict[str, Any] = {"flops": flops, "replicas": b.grid.y, "nbytes": nbytes}
    b.op("ssd", "ssd", reads, [scanned, gated], **about, **how)
    gated = _to_heads(b, gated, "ssd.out", (inner,))
    out, stats = b.tensor(f"{NORM}.o", (b.rows, inner // b.grid.tp)), _stats(b)
    about = {"groups": b.gpt.mamba2.groups // b.grid.tp, "eps": b.gpt.norm_eps}
    b.op(NORM, "group_norm", [gated, f"{owner}.{NORM}.w"], [out, stats], **about)
    saved = Saved(made, scanned, gated, out, stats)
    if not whole:
        return "", saved
    out, weights["out_proj"] = linear.forward(b, linears(b)["out_proj"], owner, out)
    return out, saved


def backward(b: Builder, owner: Part, kept: Kept, grad: str, *, again: str) -> str:
    """Emit the gradients from `grad`, that of the output; returns that of the normalised rows."""
    normed, saved, weights = kept
    d = linear_grad(b, linears(b)["out_proj"], owner, saved.normed, weights, grad)
    _norm_grad(b, owner, saved, d)
    d = _to_tokens(b, d, "ssd.grad.out", (mamba2.inner(b.gpt),))
    convolved = _convolve(b, owner, "conv.again", saved.made)
    of_made = b.tensor("in_proj.do", b.buffers[saved.made].shape)
    of_convolved = b.tensor("conv.do", b.buffers[convolved].shape)
    heads = [f"{owner}.{each}.w" for each in OF_HEADS]
    m = b.block.micro_batch
    old, new = ([n for each in heads for n in b.grad_writes(each, m)[side]] for side in (0, 1))
    reads = [d, convolved, saved.made, saved.scanned, *heads]
    columns = b.nbytes(saved.scanned)
    nbytes = _scan_bytes(b, reads[1:3], saved.scanned, 2) + b.nbytes(of_convolved) + columns
    nbytes += sum(map(b.nbytes, (*heads, *old, *new)))
    about: dict[str, Any] = {"flops": 2 * mamba2.scan_flops(b.gpt) * b.rows // b.grid.tp}
    about |= {"replicas": b.grid.y, "nbytes": nbytes, "first": b.starts, **shape_of(b)}
    b.op("ssd.grad", "ssd_grad", reads + old, [of_convolved, of_made, *new], **about)
    taps = [f"{owner}.{each}" for each in OF_TAPS]
    old, new = ([n for each in taps for n in b.grad_writes(each, m)[side]] for side in (0, 1))
    nbytes = 3 * b.nbytes(of_convolved) + sum(map(b.nbytes, (*taps, *old, *new)))
    about = {"nbytes": nbytes, "first": b.starts, **shape_of(b)}
    reads = [of_convolved, saved.made, *taps, of_made, *old]
    b.op("conv.grad", "ssd_conv_grad", reads, [of_made, *new], **about)
    of_made = _to_heads(b, of_made, "ssd.grad.in", mamba2.bands(b.gpt))
    return linear_grad(b, linears(b)["in_proj"], owner, normed, weights, of_made)


def shape_of(b: Builder) -> dict[str, Any]:
    """The heads and groups that one rank scans, the width of a head, its states, the tokens of a
    chunk and of a sequence, the rows, and the axes whose ranks have parts of those of x."""
    gpt, axes = b.gpt, _traders(b)
    parts = b.grid.size(*b.shards_of("heads"), *axes)
    shape = {
        "heads": gpt.mamba2.heads // parts,
        "groups": gpt.mamba2.groups // parts,
        "width": gpt.mamba2.width,
    }
    chunk = {
        "state": gpt.mamba2.state,
        "chunk": mamba2.chunk_of(gpt),
        "sequence": gpt.sequence,
    }
    spread = {"spread": axes} if axes else {}
    return {**shape, **chunk, "rows": b.rows * b.grid.size(*axes), **spread}


def _traders(b: Builder) -> Axes:
    """The axes whose ranks trade tokens for heads."""
    return b.shards_of("positions") if b.plan.cp > 1 else ()


def _to_tokens(b: Builder, source: str, label: str, bands: tuple[int, ...]) -> str:
    """Emit the exchange of a rank's tokens for all tokens of some heads, if context splits any;
    `bands` are the widths of all heads. Returns what the scan reads."""
    axes = _traders(b)
    return ulysses.to_tokens(b, source, label, _own(b, bands), axes) if axes else source


def _to_heads(b: Builder, source: str, label: str, bands: tuple[int, ...]) -> str:
    """Emit the exchange back to a rank's tokens of all heads; returns these."""
    if not (axes := _traders(b)):
        return source
    out = b.tensor(f"{label}.o", (b.rows, sum(bands) // b.grid.tp))
    ulysses.to_heads(b, source, label, _own(b, bands), (out, axes))
    return out


def _own(b: Builder, bands: tuple[int, ...]) -> tuple[int, ...]:
    parts = b.grid.size(*b.shards_of("heads"), *_traders(b))
    return tuple(width // parts for width in bands)


def _convolve(b: Builder, owner: Part, label: str, made: str) -> str:
    """Emit the convolution of x, B and C and its SiLU; returns the output's name."""
    how = shape_of(b)
    out = b.tensor(f"{label}.o", (how["rows"], sum(_own(b, mamba2.conv_bands(b.gpt)))))
    taps = [f"{owner}.{each}" for each in OF_TAPS]
    nbytes = 2 * b.nbytes(out) + sum(map(b.nbytes, taps))
    b.op(label, "ssd_conv", [made, *taps], [out], nbytes=nbytes, **how)
    return out


def _scan_bytes(b: Builder, reads: list[str], scanned: str, times: int = 1) -> int:
    """What a scan takes of its operands, each once: x, B, C and numbers of heads, of the first
    linear's output z and dt alone, and its own output. With `times` 2 the gradient's: dt and z are
    read, and their gradients written."""
    convolved, _, *heads = reads
    steps = b.rows * b.gpt.mamba2.heads // b.grid.tp * b.item_bytes()
    own = b.nbytes(convolved) + b.nbytes(scanned) + sum(map(b.nbytes, heads))
    return own + times * (steps + b.nbytes(scanned))


def _norm_grad(b: Builder, owner: Part, saved: Saved, grad: str) -> None:
    """Emit the norm's gradients; `grad` becomes that of the gated rows, in place."""
    gain, m = f"{owner}.{NORM}.w", b.block.micro_batch
    old, new = b.grad_writes(gain, m)
    reads = [grad, saved.gated, saved.stats, gain, *old]
    groups, columns = b.gpt.mamba2.groups, mamba2.inner(b.gpt) // b.gpt.mamba2.groups
    about: dict[str, Any] = {"groups": groups // b.grid.tp, "columns": columns, "rows": b.rows}
    b.op(f"{NORM}.grad", "group_norm_grad", reads, [grad, *new], first=b.starts, **about)


def _stats(b: Builder) -> str:
    return b.tensor(f"{NORM}.stats", (1, b.rows * b.gpt.mamba2.groups // b.grid.tp), b.wide)


def _products(b: Builder) -> dict[str, Linear]:
    """The linears as one product each, as they are with state-spaces/mamba."""
    return {name: replace(own, bands=(own.n,)) for name, own in linears(b).items()}


MIXER = Mixer("norm1", "out_proj", declare, forward, backward, _products)
