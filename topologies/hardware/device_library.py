"""The library of devices: gpus.toml, and what it says of a machine with one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from topologies.errors import MachineError
from topologies.files.facts import ABOUT, Fact
from topologies.files.printable import shown
from topologies.files.reading import shipped_toml
from topologies.files.schema import nearest

_PEAK, _LINKS, _BEST = "device.peak_flops.", "node.links.", "device.matmul.best"


def gpu_of(name: str) -> Mapping[str, Any]:
    """The entry of that name, or else the first one whose words are all in the name.

    A MachineError names the known ones.
    """
    given = name.lower()
    own = (gpu for gpu in gpus() if gpu["name"] == given)
    alike = (gpu for gpu in gpus() if all(word in given for word in gpu["match"]))
    found = next(own, None) or next(alike, None)
    if found is None:
        known = list(dict.fromkeys(gpu["name"] for gpu in gpus()))
        raise MachineError(
            f'gpu "{shown(name)}" is not known; known: {", ".join(known)}{nearest(given, known)}'
        )
    return found


def family_of(gpu: str) -> str:
    """The GPU's generation: a100, h100, b200, mi250x and so on."""
    entry = gpu_of(gpu)
    return str(entry.get("family", str(entry["name"]).partition("-")[0]))


def with_device(
    facts: Mapping[str, Fact], gpu: Mapping[str, Any], measured_on: str
) -> dict[str, Fact]:
    """The facts of a machine with the device of an entry in the place of its own.

    What is not in the entry stays. Of an unmeasured device it has confidence "low", and
    `measured_on`, the machine that the facts are of, in `inherited`.
    """
    own, links = gpu.get("set", {}), gpu.get("links", {})
    gone = [_PEAK, _BEST] if any(key.startswith(_PEAK) for key in own) else []
    gone += [*gpu.get("without", ()), *([_LINKS] if links else [])]
    result = {key: fact for key, fact in facts.items() if not key.startswith(tuple(gone))}
    if gpu.get("unmeasured"):
        result = {key: _lowered(fact, measured_on) for key, fact in result.items()}
    for key, value in own.items():
        if key in facts or not key.startswith(_LINKS):
            result[key] = _fact(key, value, facts)
    for name, value in links.items():
        if name not in ABOUT:
            about = {word: links[word] for word in ABOUT if word in links}
            result[_LINKS + name] = Fact(_LINKS + name, value, **about)
    return result


def _lowered(fact: Fact, measured_on: str) -> Fact:
    if not fact.key.startswith("device.") or fact.is_label:
        return fact
    return replace(fact, confidence="low", inherited=fact.inherited or measured_on)


def _fact(key: str, value: Any, facts: Mapping[str, Fact]) -> Fact:
    if not isinstance(value, Mapping):
        return Fact(key, value, facts[key].source if key in facts else "")
    return Fact(key, **value)


@cache
def gpus() -> list[dict[str, Any]]:
    """The GPUs of gpus.toml."""
    return list(shipped_toml("topologies", "gpus.toml")["gpu"])
