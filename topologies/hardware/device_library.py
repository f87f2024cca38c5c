"""The library of devices: gpus.toml, and what it says of a machine with one of them."""

from __future__ import annotations

import re
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
_LIKE = "device.like"
# What is of a device, of its links, and of how a library uses them: of another one it is a guess.
OF_DEVICE = ("device.", "software.", "node.host.", "node.links.")
_MAKERS = ("nvidia", "amd", "intel", "instinct", "sxm", "sxm4", "sxm5")


def gpu_of(name: str) -> Mapping[str, Any]:
    """The entry of that name, or else the first one whose words are all in the name.

    A MachineError names the known ones.
    """
    given = name.lower()
    own = (gpu for gpu in gpus() if gpu["name"] == given)
    alike = (gpu for gpu in gpus() if all(_has(given, word) for word in gpu["match"]))
    found = next(own, None) or next(alike, None)
    if found is None:
        known = list(dict.fromkeys(gpu["name"] for gpu in gpus()))
        raise MachineError(
            f'gpu "{shown(name)}" is not known; known: {", ".join(known)}{nearest(given, known)}'
        )
    return found


def _has(name: str, word: str) -> bool:
    """Whether a word begins in a name where a word begins, and no number goes on behind it.

    >>> _has("nvidia h100-sxm", "h100"), _has("h1000", "h100"), _has("gh100", "h100")
    (True, False, False)
    """
    return re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![0-9])", name) is not None


def exact_gpu(name: str) -> Mapping[str, Any]:
    """The entry that a user names: by its own name, and words that say nothing else.

    A MachineError where a word of it is not of that entry.
    """
    entry, given = gpu_of(name), name.lower()
    known = {*entry["match"], *re.split("[- ]", entry["name"]), *entry.get("also", ()), *_MAKERS}
    for word in re.split("[-_ ]", given):
        if word and word not in known and word.removesuffix("gb") not in known:
            names = list(dict.fromkeys(str(gpu["name"]) for gpu in gpus()))
            raise MachineError(
                f'gpu "{shown(name)}" is not known: {shown(word)} is nothing of '
                f"{entry['name']}; known: {', '.join(names)}{nearest(given, names)}"
            )
    return entry


def family_of(gpu: str) -> str:
    """The GPU's generation: a100, h100, b200, mi250x and so on."""
    entry = gpu_of(gpu)
    return str(entry.get("family", str(entry["name"]).partition("-")[0]))


def with_device(
    facts: Mapping[str, Fact],
    gpu: Mapping[str, Any],
    measured_on: str,
    of_device: tuple[str, ...] = OF_DEVICE,
) -> dict[str, Fact]:
    """The facts of a machine with the device of an entry in the place of its own.

    What is not in the entry stays. Of an unmeasured device it has confidence "low", and
    `measured_on`, the machine that the facts are of, in `inherited`, under keys `of_device`.
    """
    own, links = gpu.get("set", {}), gpu.get("links", {})
    gone = [_PEAK, _BEST] if any(key.startswith(_PEAK) for key in own) else []
    gone += [*gpu.get("without", ()), *([_LINKS] if links else [])]
    result = {key: fact for key, fact in facts.items() if not key.startswith(tuple(gone))}
    if gpu.get("unmeasured"):
        result = {key: lowered(fact, measured_on, of_device) for key, fact in result.items()}
    result |= own_facts(gpu, facts)
    result[_LIKE] = Fact(_LIKE, gpu["name"], source="")
    for name, value in links.items():
        if name not in ABOUT:
            about = {word: links[word] for word in ABOUT if word in links}
            result[_LINKS + name] = Fact(_LINKS + name, value, **about)
    return result


def own_facts(gpu: Mapping[str, Any], facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """What an entry itself sets, of links only where the node has such ones."""
    return {
        key: _fact(key, value, facts)
        for key, value in gpu.get("set", {}).items()
        if key in facts or not key.startswith(_LINKS)
    }


def lowered(fact: Fact, measured_on: str, keys: tuple[str, ...] = OF_DEVICE) -> Fact:
    """A fact that another device was measured for, or one that says nothing of devices as it is."""
    if not fact.key.startswith(keys) or fact.is_label:
        return fact
    return replace(fact, confidence="low", inherited=fact.inherited or measured_on)


def _fact(key: str, value: Any, facts: Mapping[str, Fact]) -> Fact:
    if not isinstance(value, Mapping):
        return Fact(key, value, facts[key].source if key in facts else "")
    return Fact(key, **{**value, "value": _tuples(value["value"])})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@cache
def gpus() -> list[dict[str, Any]]:
    """The GPUs of gpus.toml."""
    return list(shipped_toml("topologies", "gpus.toml")["gpu"])
