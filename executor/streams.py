"""Streams of a GPU beside the one that computes, made once and kept."""

from __future__ import annotations

from typing import Any

import torch


class SideStreams:
    """The side streams of one rank, by name; each is made when it is first asked for.

    torch hands out streams in turn from a pool of 32, so one made anew every step would soon be
    the stream of another purpose, and waiting in the one would hold up the other.
    """

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def named(self, name: str, device: torch.device) -> Any:
        """The stream of this name on the rank's GPU."""
        if name not in self._made:
            self._made[name] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._made[name]
