"""The compiled core, where it was built: `core.c`. Where it was not, its slow twins serve."""

from __future__ import annotations

from typing import Any

core: Any
try:
    from simulator.engine import _core as core  # type: ignore[attr-defined,no-redef]
except ImportError:  # built without a compiler
    core = None


def is_built() -> bool:
    """Whether the extension is there."""
    return core is not None
