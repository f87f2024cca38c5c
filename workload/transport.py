"""How a collective travels on a network, in so far as its time depends on it."""

from __future__ import annotations

import math
from typing import NamedTuple

from workload.kinds import COMMUNICATION


class Transport(NamedTuple):
    """The kind of a collective or message, and its rate class.

    The classes: the library's own rate, as all fields but the kind are by default; an all-to-all
    `in_steps`, inside nodes first and then across them; and an all-to-all by kernels that reach
    other shares than the library of the links `within` a node or of the NICs (`across`), None: the
    library's. No rank sends or sums more than `payload_bytes_per_s`.
    """

    kind: str
    in_steps: bool = False
    within: float | None = None
    across: float | None = None
    payload_bytes_per_s: float = math.inf


PLAIN = {kind: Transport(kind) for kind in COMMUNICATION}  # by the library
ALL_TO_ALL = PLAIN["all_to_all"]
IN_STEPS = ALL_TO_ALL._replace(in_steps=True)
