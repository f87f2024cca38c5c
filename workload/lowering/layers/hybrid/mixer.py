"""What a layer of a hybrid knows of its mixer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topologies.records import record
from workload.lowering.builder import Builder
from workload.op import MIXER, Part

Kept = tuple[str, Any, dict[str, str]]  # the normalised input, what the forward kept, weight tiles


@record
class Mixer:
    """The functions of a mixer, and the names of the norm before it and of its last linear.

    `declare` declares its parameters. `forward` takes the layer, the normalised rows, a dictionary
    for the weight tiles it uses, and whether it is `whole`; it returns the output's name and what
    is kept. `backward` takes the layer, what was kept and the output's gradient, and returns that
    of the normalised rows; weight tiles are those that recomputation gathered, or none. The norm
    and the mixer belong to modules of the layer (`Op.module`).
    """

    norm: str
    last: str
    declare: Callable[[Builder, Part], None]
    forward: Callable[..., tuple[str, Any]]
    backward: Callable[..., str]
    module_of_norm: str = MIXER
    module: str = MIXER
