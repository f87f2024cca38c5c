"""What a machine is built from: a GPU, how many a node has, its NICs, and what joins them."""

from __future__ import annotations

from functools import cache
from typing import Any

from topologies.files.reading import shipped_toml
from topologies.records import record


@record
class Parts:
    """What a machine is built from; 0 or an empty word: as the GPU's usual node has it.

    `nic_bits_per_s` is one NIC's rate each way.
    """

    gpu: str
    nodes: int
    devices_per_node: int = 0
    nics_per_node: int = 0
    nic_bits_per_s: float = 0.0
    fabric: str = ""
    name: str = ""


@cache
def fabrics() -> dict[str, Any]:
    """The fabrics of fabrics.toml."""
    return shipped_toml("topologies", "fabrics.toml")
