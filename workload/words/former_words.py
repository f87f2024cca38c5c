"""Words of version 0.2 for a plan's fields and its axes, which files and commands may still use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMER_WORDS = {
    "x": "tp",
    "context": "cp",
    "data": "dp",
    "pipe": "pp",
    "interleave": "vpp",
    "micro_batch": "mbs",
    "sequence_parallel": "sp",
    "expert": "ep",
    "expert_tensor": "etp",
}
_PARTS = {  # of axes, which answers and manifests name as well
    "expert_copies": "edp",
    "expert_shard": "edp_shard",
    **{f"{where}_x": f"{where}_tp" for where in ("inner", "middle", "outer")},
    **{f"{where}_context": f"{where}_cp" for where in ("inner", "middle", "outer")},
}


def key_now(key: str) -> str:
    """A field of a plan, or an axis, by its name of today.

    >>> key_now("pipe"), key_now("pp"), key_now("zero")
    ('pp', 'pp', 'zero')
    """
    return FORMER_WORDS.get(key, key)


def order_now(order: str) -> str:
    """An order of axes by their names of today.

    >>> order_now("x-y-z-context-pipe-data")
    'tp-y-z-cp-pp-dp'
    """
    return "-".join(map(key_now, order.split("-")))


def axes_now(axes: str) -> str:
    """Axes, or parts of axes, by their names of today.

    >>> axes_now("z+data"), axes_now("expert_copies"), axes_now("compute")
    ('z+dp', 'edp', 'compute')
    """
    return "+".join(_PARTS.get(each, key_now(each)) for each in axes.split("+"))


def keys_now(value: Any) -> Any:
    """A value of a file with the names of today as keys of its tables, however deep they are.

    >>> keys_now({"where": [{"when": {"x": ">1"}, "sequence_parallel": True}]})
    {'where': [{'when': {'tp': '>1'}, 'sp': True}]}
    """
    if isinstance(value, Mapping):
        return {key_now(key): keys_now(each) for key, each in value.items()}
    return list(map(keys_now, value)) if isinstance(value, list) else value
