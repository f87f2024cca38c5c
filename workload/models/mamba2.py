"""Sizes, parameters and FLOPs of a Mamba-2 layer.

Letters: H heads of width P in G groups, each group with N numbers of a state for each column;
Q tokens of a chunk. A linear makes of a token its gate z and its x (H P each), its B and C (G N
each) and its step dt (H); a convolution of K taps with a bias and SiLU works on x, B and C; the
scan makes y, which the gate and a norm over the columns of each group follow, and a linear out.
Source: Dao and Gu, Mamba-2 (2405.21060), sections 6 and 7; the order of gate and norm, and what has
parameters, as in Megatron-Core, megatron/core/ssm/mamba_mixer.py.
"""

from __future__ import annotations

from workload.model.fields import ModelFields

OF_HEADS = 3  # numbers of a head: the logarithm of its decay, its skip, its step's bias


def inner(gpt: ModelFields) -> int:
    """Columns of the scan: H P, `expand` times the hidden width in the paper's terms."""
    return gpt.mamba2.heads * gpt.mamba2.width


def bands(gpt: ModelFields) -> tuple[int, int, int, int, int]:
    """Widths of z, x, B, C and dt, side by side in the first linear."""
    states = gpt.mamba2.groups * gpt.mamba2.state
    return inner(gpt), inner(gpt), states, states, gpt.mamba2.heads


def conv_bands(gpt: ModelFields) -> tuple[int, int, int]:
    """Widths of what the convolution works on: x, B and C."""
    _, *convolved, _ = bands(gpt)
    first, second, third = convolved
    return first, second, third


def weights(gpt: ModelFields) -> int:
    """Elements of a layer's weight matrices."""
    return gpt.hidden * (sum(bands(gpt)) + inner(gpt))


def others(gpt: ModelFields) -> int:
    """A layer's other parameters: of the convolution, three of each head, the norm's gain."""
    convolution = (gpt.mamba2.conv + 1) * sum(conv_bands(gpt))
    return convolution + OF_HEADS * gpt.mamba2.heads + inner(gpt)


def chunk_of(gpt: ModelFields) -> int:
    """Tokens of a chunk of the scan."""
    return min(gpt.mamba2.chunk, gpt.sequence)


def scan_flops(gpt: ModelFields) -> int:
    """FLOPs of one layer's scan for a token: products within chunks, of all Q tokens with each, and
    those that make the chunks' states and take from them.

    Source: Mamba-2 (2405.21060), section 6: C B^T (2 Q N for each group), its product with x
    (2 Q P for each head), states and outputs of them (2 N P each). Not counted: the recurrence over
    chunks, the convolution and what else works element by element.
    """
    heads, width, state = gpt.mamba2.heads, gpt.mamba2.width, gpt.mamba2.state
    within = 2 * chunk_of(gpt) * (gpt.mamba2.groups * state + heads * width)
    return within + 4 * heads * width * state
