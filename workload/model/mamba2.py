"""The fields of Mamba-2."""

from __future__ import annotations

from typing import ClassVar

from topologies.records import bounded, record


@record(kw_only=True)
class Mamba2:
    """The layers `M` of a pattern; a text's keys are these with `ssm_` before them.

    `heads` heads of `width` columns have `state` numbers of a state for each column, which heads of
    each of `groups` groups share; the convolution has `conv` taps, and the scan works on chunks of
    `chunk` tokens.
    """

    PREFIX: ClassVar[str] = "ssm_"

    heads: int = bounded(default=0, most=100_000)
    width: int = bounded(default=0, most=10_000)
    state: int = bounded(default=0, most=100_000)
    groups: int = bounded(default=1, least=1, most=10_000)
    conv: int = bounded(default=4, least=1, most=64)  # taps; kernels have 2 to 4
    chunk: int = bounded(default=128, least=1, most=1_000_000)
