"""A machine named by its parts: `64x8xH100,8xNDR` is 64 nodes of 8 H100, each with 8 NDR NICs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from functools import cache
from typing import Any
from urllib.parse import quote_plus, unquote_plus

from topologies.errors import MachineError
from topologies.files.printable import shown
from topologies.files.reading import shipped_toml
from topologies.files.schema import nearest
from topologies.hardware.device_library import exact_gpu, gpu_of
from topologies.parts import Parts, fabrics

_COUNT = r"(?:(\d{1,9})x)"
_BEGINS = re.compile(r"\d+x\S", re.IGNORECASE)
_NODES = re.compile(rf"{_COUNT}{_COUNT}?([^\d\s].*)", re.IGNORECASE)
_COUNTED = re.compile(rf"{_COUNT}?(.+)", re.IGNORECASE)
_RATE = re.compile(r"(\d+\.?\d*|\.\d+)\s?([kmgt]?)(bit/s|bps|b/s|)", re.IGNORECASE)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_NAME = "name="
_OF_NIC = "fabric of the NICs"  # which counts unless another one is named
_WHAT = {
    "nics_per_node": "number of NICs",
    "nic_bits_per_s": "NICs",
    _OF_NIC: "NICs",
    "fabric": "fabric",
    "name": "name",
}
_ANY_NIC = "nic"
_HINT = "write it like 64x8xH100,8xNDR or 64x8xH100,8x400Gbit/s,roce"


def is_parts(text: str) -> bool:
    """Whether a machine's name begins as its parts do: with a number of nodes and an x.

    >>> is_parts("64x8xH100,8xNDR"), is_parts("dgx-h100")
    (True, False)
    """
    return _BEGINS.match(text) is not None


def parse_parts(text: str) -> Parts:
    """The parts that a text names: nodes × devices in a node × device, NICs, fabric and name.

    Only the nodes and the device must be there. NICs are those of one node: their number, and
    their kind (of nics.toml, which says the fabric too) or the rate of one each way. Then may
    follow a fabric (of fabrics.toml, or `none`) and `name=`, with a + for each space. What is not
    named is unset, and later taken from the device's usual node.

    A MachineError says which word is not known, and the nearest that is.

    >>> parse_parts("64x8xH100,8xNDR")  # doctest: +NORMALIZE_WHITESPACE
    Parts(gpu='h100', nodes=64, devices_per_node=8, nics_per_node=8,
          nic_bits_per_s=400000000000.0, fabric='infiniband', name='')
    >>> parse_parts("4xMI250X").devices_per_node
    0
    """
    first, *words = text.split(",")
    found = _NODES.fullmatch(first.strip())
    if found is None or not int(found[1]) or not int(found[2] or 1):
        raise MachineError(f"{shown(text)} names no nodes of devices; {_HINT}")
    parts = Parts(str(exact_gpu(found[3])["name"]), int(found[1]), int(found[2] or 0))
    given: dict[str, Any] = {}
    for word in words:
        for key, value in _read(word.strip()).items():
            if key in given:
                raise MachineError(f"{shown(text)} gives its {_WHAT[key]} twice; {_HINT}")
            given[key] = value
    usual = given.pop(_OF_NIC, "")
    return replace(parts, **{"fabric": usual, **given})


def parts_text(parts: Parts) -> str:
    """The text that `parse_parts` reads as these parts, the device under its name in gpus.toml.

    It has no spaces, and can be the name of a file.

    >>> parts_text(Parts("A100 80GB SXM", 16, 4, 2, 200e9, "infiniband", "my cluster"))
    '16x4xa100-80,2x200Gbit/s,infiniband,name=my+cluster'
    """
    counts = [parts.nodes, parts.devices_per_node] if parts.devices_per_node else [parts.nodes]
    words = ["x".join([*map(str, counts), str(gpu_of(parts.gpu)["name"])])]
    if parts.nics_per_node or parts.nic_bits_per_s:
        count = f"{parts.nics_per_node}x" if parts.nics_per_node else ""
        rate = format(Decimal(repr(parts.nic_bits_per_s)).scaleb(-9).normalize(), "f")
        words.append(count + (f"{rate}Gbit/s" if parts.nic_bits_per_s else _ANY_NIC))
    if parts.fabric:
        words.append(parts.fabric)
    if parts.name:
        words.append(_NAME + quote_plus(parts.name).replace(".", "%2E"))
    return ",".join(words)


def _read(word: str) -> dict[str, Any]:
    """The fields of `Parts` that a word after the first one gives."""
    if word.lower().startswith(_NAME):
        return {"name": unquote_plus(word[len(_NAME) :])}
    if word.lower() in ("none", *fabrics()):
        return {"fabric": word.lower()}
    found = _COUNTED.fullmatch(word)
    if found is None or not int(found[1] or 1):
        raise MachineError(
            f"{shown(word) or 'nothing'} after a comma is not a NIC or fabric; {_HINT}"
        )
    count = {"nics_per_node": int(found[1])} if found[1] else {}
    return {**count, **_nic(found[2], word)}


def _nic(kind: str, word: str) -> dict[str, Any]:
    """The rate of a kind of NIC, and its fabric, or the rate that stands there instead."""
    rate = _RATE.fullmatch(kind)
    if rate is not None and (rate[2] or rate[3]):
        return {"nic_bits_per_s": _bits_per_s(rate[1], rate[2], rate[3], word)}
    kind = kind.lower()
    if kind == _ANY_NIC:
        return {}
    if kind not in nics():
        names = list(dict.fromkeys(str(nic["name"]) for nic in nics().values()))
        raise MachineError(
            f"{shown(word)} is neither a NIC nor a fabric; NICs: {', '.join(names)}, or a rate "
            f"such as 400Gbit/s; fabrics: {', '.join(fabrics())}, none"
            f"{_nearest(kind, (*nics(), *fabrics()))}"
        )
    nic = nics()[kind]
    return {**_nic(nic["rate"], word), _OF_NIC: nic["fabric"]}


def _bits_per_s(number: str, prefix: str, unit: str, word: str) -> float:
    """A rate, in bits or bytes; a MachineError where its unit may be either."""
    factor = {"bit/s": 1, "bps": 1}.get(unit.lower(), 8 if unit == "B/s" else 0)
    if not factor:
        rate = f"{number}{prefix.upper()}"
        said = "has no unit" if not unit else "may mean bits or bytes"
        raise MachineError(f"{shown(word)} {said}; write {rate}bit/s, or {rate}B/s for bytes")
    return float(Decimal(number) * _FACTORS[prefix.lower()] * factor)


def _nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that looks most like it, in the writing of its file; where the word
    names a rate in Gbit/s, of that rate alone."""
    names = {name: str(nic["name"]) for name, nic in nics().items()}
    rates = {name: str(nic["rate"]).partition(" ")[0] for name, nic in nics().items()}
    if said := set(re.findall(r"\d+", word)) & set(rates.values()):
        known = [name for name in known if rates.get(name) in (None, *said)]
    hint, colon, found = nearest(word, known).partition(": ")
    return f"{hint}{colon}{names.get(found, found)}"


@cache
def nics() -> dict[str, dict[str, Any]]:
    """The NICs of nics.toml by their names in lower case, and by what else they are called; `name`
    is as it is written there."""
    table = shipped_toml("topologies", "nics.toml")
    return {
        word.lower(): {"name": name, **nic}
        for name, nic in table.items()
        for word in (name, *nic.get("also", ()))
    }
