"""Layouts: which part of a whole model's parameter one rank holds."""

from __future__ import annotations

from topologies.records import record

NORMAL, RESIDUAL, ONES, ZEROS = "normal", "residual", "ones", "zeros"
TAPS, DECAYS, STEPS = "taps", "decays", "steps"
# Drawn from a normal distribution; likewise, divided where it leads back into the residual stream;
# or constant; or as taps of a convolution, decays and steps of a scan do.
STARTS = (NORMAL, RESIDUAL, ONES, ZEROS, TAPS, DECAYS, STEPS)


@record
class Layout:
    """How a parameter of `shape` is cut.

    Dimension d is padded with zeros to `padded[d]` and split over the axes `split[d]` (the first
    axis named varies fastest). Bands of the last dimension, of widths `bands`, are each split by
    themselves (query, key and value stand side by side, and a rank needs its heads of all three);
    without any, the dimension is one band.
    With `flat` the tile is flattened, `tail` zeros are put behind it so that its parts are equal,
    and it is split once more over those axes (as a dimension is).
    `starts` says how its values begin: as one of `STARTS`.
    """

    shape: tuple[int, ...]
    padded: tuple[int, ...]
    split: tuple[tuple[str, ...], ...]
    bands: tuple[int, ...] = ()
    flat: tuple[str, ...] = ()
    tail: int = 0
    starts: str = NORMAL
