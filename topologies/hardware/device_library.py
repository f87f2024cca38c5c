"""The library of devices (gpus.toml and cards.toml), and the machine values that an entry sets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from topologies.errors import MachineError, UnknownDeviceError
from topologies.files.facts import ABOUT, Fact
from topologies.files.printable import shown
from topologies.files.reading import shipped_toml
from topologies.files.schema import nearest
from topologies.session import session_cached

_PEAK, _LINKS, _BEST = "device.peak_flops.", "node.links.", "device.matmul.best"
_LIKE = "device.like"
# What is of a device, of its links, and of how a library uses them: of another one it is a guess.
_HOST = "node.host.bandwidth"
OF_DEVICE = ("device.", "software.", "node.host.", "node.links.")
_MAKERS = ("nvidia", "amd", "intel", "instinct", "sxm", "sxm4", "sxm5", "gpu")
_FILES = ("gpus.toml", "cards.toml")
_LINES = (  # of a file for a device that is not in the library: what its data sheet says
    'base = "2x8x{like}"',
    "[device]",
    'base = "{like}"',
    'memory = {{value = "97871 MiB", source = "nvidia-smi"}}',
    'memory_bandwidth = {{value = "4.0 TB/s", source = "data sheet"}}',
    'peak_flops.bf16 = {{value = "148 TFLOP/s", source = "data sheet, dense"}}',
)
_OF_ITSELF = ("name", "match", "also", "like")  # what an entry does not take over from another


@session_cached(64)
def gpu_of(name: str) -> Mapping[str, Any]:
    """The entry of that name, or else the first one whose words are all in the name.

    A MachineError names the known ones.
    """
    given = spelled(name)
    alike = (gpu for gpu in gpus() if all(_has(given, word) for word in gpu["match"]))
    found = _by_spelling().get(given) or next(alike, None)
    if found is None:
        raise _unknown(name, "is not known")
    return found


def spelled(name: str) -> str:
    """A device's name with its words apart, in lower case, and its memory in GB.

    >>> [spelled(name) for name in ("RTX4090", "GeForce RTX 4090 24G", "A100_SXM4-80GB")]
    ['rtx-4090', 'geforce-rtx-4090-24gb', 'a100-sxm4-80gb']
    >>> [spelled(name) for name in ("RTXPro6000", "RTX6000Ada", "Tesla V100")]
    ['rtx-pro-6000', 'rtx-6000-ada', 'tesla-v100']
    """
    words = re.sub(r"[-_ ]+", "-", name.lower().strip())
    words = re.sub(r"(?<![a-z0-9])(geforce|rtx|pro|tesla)(?=[a-z0-9])", r"\1-", words)
    words = re.sub(r"(?<![a-z0-9])(geforce|rtx|pro|tesla)(?=[a-z0-9])", r"\1-", words)
    words = re.sub(r"(?<=\d)(?=ada(?![a-z0-9]))", "-", words)
    return re.sub(r"(?<=[a-z0-9]-)(\d+)gi?b?(?![a-z0-9])", r"\1gb", words)


def _unknown(name: str, why: str) -> MachineError:
    """The error for a device that the library does not have: the nearest names, all names, and a
    file that describes the device."""
    known = list(dict.fromkeys(str(gpu["name"]) for gpu in gpus()))
    hint = nearest(spelled(name), known)
    like = (hint.rpartition(": ")[2] or "h100").upper()
    return UnknownDeviceError(
        f'gpu "{shown(name)}" {why}{hint}; known: {", ".join(known)}; to describe another one, '
        "give -m a file of these lines with the values of its data sheet:",
        tuple(f"    {line.format(like=like)}" for line in _LINES),
    )


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
    entry, given = gpu_of(name), spelled(name)
    of_name = spelled(entry["name"]).split("-")
    known = {*entry["match"], *of_name, *entry.get("also", ()), *_MAKERS}
    for word in given.split("-"):
        if word and word not in known and word.removesuffix("gb") not in known:
            raise _unknown(name, f"is not known: {entry['name']} has no variant {shown(word)}")
    return entry


def family_of(gpu: str) -> str:
    """The GPU's generation: a100, h100, b200, mi250x and so on."""
    entry = gpu_of(gpu)
    return str(entry.get("family", str(entry["name"]).partition("-")[0]))


def half_of(gpu: str) -> str:
    """The 16-bit type in which a device without bf16 trains; "" for a device with bf16.

    >>> half_of("v100"), half_of("a100-80"), half_of("my own")
    ('fp16', '', '')
    """
    return next((str(entry.get("half", "")) for entry in gpus() if entry["name"] == gpu), "")


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
            result[_LINKS + name] = Fact(_LINKS + name, _tuples(value), **about)
    if links.get("switch") == 1 and _HOST not in own:  # PCIe, which leads to the host, too
        result[_HOST] = replace(result[_LINKS + "bandwidth"], key=_HOST)
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
    """The entries of the library, each with what it takes over from the one that it is `like`."""
    entries = [entry for file in _FILES for entry in shipped_toml("topologies", file)["gpu"]]
    by_name = {entry["name"]: entry for entry in entries}
    return [_with_like(entry, by_name) for entry in entries]


@cache
def _by_spelling() -> dict[str, dict[str, Any]]:
    """The entries by their names as `spelled` has them; of equal names the first."""
    return {spelled(gpu["name"]): gpu for gpu in reversed(gpus())}


def _with_like(entry: Mapping[str, Any], by_name: Mapping[str, Any]) -> dict[str, Any]:
    if "like" not in entry:
        return dict(entry)
    taken = {k: value for k, value in by_name[entry["like"]].items() if k not in _OF_ITSELF}
    values = {**taken.get("set", {}), **entry.get("set", {})}
    also = (*by_name[entry["like"]].get("also", ()), *entry.get("also", ()))
    return {**taken, **entry, "set": values, "also": also}
