"""A block for ops that are written by hand."""

from __future__ import annotations

from workload.op import FORWARD, Block, layer_part

BLOCK = Block(0, layer_part(0), FORWARD)
