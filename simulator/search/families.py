"""Families of plans: the kinds of parallelism that a plan has beside data parallelism.

With tensor parallelism or a pipeline ZeRO-3 makes no family of its own, nor does context
parallelism, which may come to any plan. Experts may be split by ranks of ep or by etp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from workload.sizes.arrays import Counts

Sizes = Mapping[str, Any]  # of a plan: numbers, or arrays with an entry for each plan
KINDS: Mapping[str, Callable[[Sizes], Any]] = {
    "FSDP": lambda of: (of["zero"] == 3) & (of["tp"] * of["y"] * of["z"] * of["pp"] == 1),
    "3D": lambda of: of["y"] * of["z"] > 1,
    "tp": lambda of: (of["tp"] > 1) & (of["y"] * of["z"] == 1),
    "pp": lambda of: of["pp"] > 1,
    "ep": lambda of: (of["ep"] > 1) | (of["etp"] > 1),
}
NONE = "dp"


def family_of(plan: Any) -> str:
    """The family of a plan: the kinds of parallelism that it has beside data parallelism, or that
    alone, of a plan or of whatever else has its axes.

    >>> from workload.plan import Plan
    >>> family_of(Plan(tp=4, pp=2, dp=2, batch=8, mbs=1, sp=True))
    'tp+pp'
    >>> family_of(Plan(etp=4, dp=4, batch=8, mbs=1))
    'ep'
    """
    sizes = {key: getattr(plan, key) for key in ("zero", "tp", "y", "z", "pp", "ep", "etp")}
    return "+".join(name for name, has in KINDS.items() if has(sizes)) or NONE


def codes_of(columns: Sizes) -> Counts:
    """The families of many plans, as numbers: one bit for each of KINDS."""
    flags = [np.asarray(has(columns), dtype=np.int64) for has in KINDS.values()]
    return np.asarray(sum(flag << at for at, flag in enumerate(flags)))


def name_of(code: int) -> str:
    """The family with such a number.

    >>> name_of(0), name_of(0b1100)
    ('dp', 'tp+pp')
    """
    return "+".join(name for at, name in enumerate(KINDS) if code >> at & 1) or NONE
