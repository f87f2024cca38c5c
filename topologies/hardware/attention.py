"""Fused attention on a device: its share of the peak, and how shapes change that."""

from __future__ import annotations

from typing import Annotated

from topologies.files.keys import Key
from topologies.records import record


@record(slots=False)
class Pass:
    """How the rate of one pass, forward or backward, depends on a head's width.

    The softmax of a score takes as long as multiplying so many columns (`softmax`) of a head;
    tiles shrink for heads of more than 128 columns, which have `wide` of the rate; heads whose
    width is no multiple of 32 have `uneven` of it. `memory` is what goes through memory beside the
    matmuls, in bytes for each element of the queries: zeroing, summing and casting gradients.
    """

    softmax: Annotated[float, Key("softmax", zero=True)]
    wide: Annotated[float, Key("wide", share=True)]
    uneven: Annotated[float, Key("uneven", share=True)]
    memory: Annotated[float, Key("memory", zero=True)]


@record(slots=False)
class Shape:
    """How a kernel is cut into blocks: each does `rows` of a head's sequence, and the device works
    at `units` of them at once (streaming multiprocessors or compute units)."""

    units: Annotated[int, Key("units")]
    rows: Annotated[int, Key("rows")]
    forward: Annotated[Pass, Key("forward")]
    backward: Annotated[Pass, Key("backward")]


@record(slots=False)
class Attention:
    """Fused attention's share of the peak on the FLOPs it really does, with heads of 128 columns
    and all of the device at work. Without a `shape` all shapes run at that rate."""

    forward: Annotated[float, Key("forward", share=True)]
    backward: Annotated[float, Key("backward", share=True)]
    shape: Annotated[Shape | None, Key("shape")] = None
