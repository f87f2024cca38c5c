"""The fields of multi-token prediction."""

from __future__ import annotations

from typing import ClassVar

from topologies.records import bounded, record

MOST_DEPTHS = 8  # published models have 1 to 3


@record(kw_only=True)
class Mtp:
    """Modules that predict further tokens (`workload/models/mtp.py`); a text's keys are these with
    `mtp_` before them.

    `layers` modules behind the last layer, one behind the other, predict a further token each;
    their losses are weighed by `loss` in all. Behind a hybrid each has the layers of the letters
    `pattern`. With `shared` all have the parameters of the first one.
    """

    PREFIX: ClassVar[str] = "mtp_"

    layers: int = bounded(default=0, most=MOST_DEPTHS)
    loss: float = 0.3
    pattern: str = ""
    shared: bool = False
