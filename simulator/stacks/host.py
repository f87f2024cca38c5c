"""The host that issues kernels: how long it takes, as a stack's file says by GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topologies.files.units import quantity

# By the fields of `Kernels` the keys of a stack's kernels, of which the first that is there counts.
HOSTS = {
    "host_s": ("host", "host_with_experts"),
    "host_of_expert_s": ("host_of_expert",),
    "narrow_host_of_expert_s": ("fp8_host_of_expert", "host_of_expert"),
}


def host_times(
    own_kernels: Mapping[str, Any], gpu: Sequence[str], *, experts: bool
) -> dict[str, float]:
    """Seconds that the host takes, by the fields of `Kernels`."""
    found: dict[str, float] = {}
    for name, keys in HOSTS.items():
        asked = keys if experts else keys[:1]
        given = (of_gpu(own_kernels.get(key, {}), gpu) for key in asked)
        found[name] = next((quantity(each, "s") for each in given if each is not None), 0.0)
    return found


def with_hosts(own_kernels: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """A stack's kernels with hosts that take so many times as long."""
    changed = dict(own_kernels)
    for key in {key for keys in HOSTS.values() for key in keys} & {*changed}:
        times = {gpu: factor * quantity(each, "s") for gpu, each in changed[key].items()}
        changed[key] = {gpu: f"{each!r} s" for gpu, each in times.items()}
    return changed


def of_gpu(table: Mapping[str, Any], names: Sequence[str]) -> Any:
    """What a table has for a GPU, known by several names; None if nothing."""
    return next((table[name] for name in names if name in table), None)
