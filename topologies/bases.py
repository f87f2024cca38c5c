"""Machine files that build on another machine, a device of the library, or another's library.

What such a file gives replaces what it takes over: `base = "dgx-h100"` takes a whole machine,
`device = "H200"` what gpus.toml knows of that device, `software = "dgx-h100:pytorch"` the
collective library of a machine. In `[device]` and `[software]`, `base` says the same beside values
of one's own. Each value that was taken over has the name of where it came from in `inherited`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from topologies.build import device_facts, spread
from topologies.collectives.nccl_tuner import NONE
from topologies.environments import ENVIRONMENTS
from topologies.errors import MachineError
from topologies.files.facts import Fact, read_facts
from topologies.files.keys import MOST_COUNT
from topologies.files.schema import nearest
from topologies.hardware.device_library import gpu_of, lowered
from topologies.hardware.interconnect import FIXED
from topologies.machine import Machine, check_unmeasured, machine_from_facts
from topologies.shipped import machine_names
from topologies.variants import as_variant

MOST_BASES = 8  # of files that build on files
_OWN_LABELS = ("name", "description", "variant")
_OF_ITSELF = ("run_to_run.", "storage.")  # of the machine itself, and of no other
_JOINS = ("node.links.all_pairs", "node.links.pairs", "node.links.switch")
_LINKS = "node.links."
_OF_DEVICE = "device {}"  # where a value of the library of devices is inherited from
_FOLLOWS = "as many as the rest of the file needs"
Facts = dict[str, Fact]


class Load(Protocol):
    """What loads a machine by the name, the file or the parts that a base names."""

    def __call__(self, name: str, above: tuple[Path, ...] = (), /) -> Machine:
        """The machine; `above` are the files that build on it."""


def derived(
    document: Mapping[str, Any],
    variant: str,
    path: Path,
    load: Load,
    above: tuple[Path, ...] = (),
) -> Machine:
    """The machine of a file's document that takes values from elsewhere, which `load` gives.

    A file is called by its own name unless it says another. Counts that belong together follow the
    one that is given: NICs of devices, units of a fat tree, rates of its links. A MachineError says
    which base is not known, or that files build on each other in a circle; `above` are the files
    that build on this one.
    """
    around = (*above, path.resolve())
    if path.resolve() in above or len(above) >= MOST_BASES:
        chain = " on ".join(each.name for each in around)
        raise MachineError(f"machine files build on each other: {chain}")
    tables, bases = _taken_out(document, path.name)
    tables = as_variant(tables, variant, path.name)
    own = {fact.key: fact for fact in read_facts(tables, path.name)}
    base = _machine_at(bases["base"], path, load, around) if "base" in bases else None
    facts = _taken(base) if base is not None else {}
    if base is not None and base.profile is not None:
        for key in (*own, *(f"{name}.base" for name in bases if name != "base")):
            check_unmeasured(base, key)
    if "device" in bases:
        _set_device(facts, bases["device"], own, load)
    if "software" in bases:
        library = _machine_at(_machine_with(bases["software"], load), path, load, around)
        _replace_table(facts, "software.", _taken(library).values())
    _join(facts, own)
    facts = {key: _of_other(fact, facts) for key, fact in facts.items()}
    facts.setdefault("name", Fact("name", path.stem, ""))
    words = f"as {', '.join(bases.values())} with what {path.name} says"
    facts.setdefault("description", Fact("description", words, ""))
    profile = base.profile if base is not None else None
    return machine_from_facts(tuple(facts.values()), profile, path.name)


def _taken_out(document: Mapping[str, Any], origin: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The document without the names of its bases, and those names by what they are the base of."""
    tables, bases = dict(document), {}
    if "base" in tables:
        bases["base"] = tables.pop("base")
    for name in ("device", "software"):
        table = tables.get(name)
        if isinstance(table, str):
            bases[name] = tables.pop(name)
        elif isinstance(table, Mapping) and "base" in table:
            bases[name] = table["base"]
            tables[name] = {key: value for key, value in table.items() if key != "base"}
    for given in bases.values():
        if not isinstance(given, str):
            raise MachineError(f"{origin}: the base {given!r} must be the name of one, in quotes")
    if "profile" in tables:
        raise MachineError(f"{origin}: a file with measured tables has no base; leave one out")
    return tables, bases


def _machine_at(name: str, path: Path, load: Load, around: tuple[Path, ...]) -> Machine:
    """The machine that a file names as its base: a file lies beside it."""
    is_file = name.partition(":")[0].endswith((".toml", ".json"))
    return load(str(path.parent / name) if is_file else name, around)


def _machine_with(library: str, load: Load) -> str:
    """The machine whose library is named: by the machine, or by the library's tuner."""
    if library.rpartition(":")[2] in ENVIRONMENTS:
        raise MachineError(f'software = "{library}" is a library; give the environment with -m')
    if library in machine_names() or not re.fullmatch(r"[a-z0-9-]+", library):
        return library
    tuners = {load(name).software.tuner: name for name in reversed(machine_names())}
    tuners.pop(NONE, None)
    if library not in tuners:
        known = (*machine_names(), *tuners)
        raise MachineError(
            f'no machine has a library "{library}"; known: {", ".join(known)}'
            f"{nearest(library, known)}; or give a .toml or .json file"
        )
    return tuners[library]


def _taken(machine: Machine) -> Facts:
    """A machine's facts but for its own names and how its runs differ, each with where it comes
    from."""
    return {
        fact.key: replace(fact, inherited=fact.inherited or machine.full_name)
        for fact in machine.entries
        if fact.key not in _OWN_LABELS and not fact.key.startswith(_OF_ITSELF)
    }


def _of_other(fact: Fact, facts: Facts) -> Fact:
    """A fact taken over, with confidence "low" where it was measured for another device."""
    gpu = _text(facts, "device.like")
    of_other = fact.inherited and fact.inherited != _OF_DEVICE.format(gpu)
    return lowered(fact, "") if gpu and of_other and gpu_of(gpu).get("unmeasured") else fact


def _replace_table(facts: Facts, prefix: str, new: Iterable[Fact]) -> None:
    for key in [key for key in facts if key.startswith(prefix)]:
        del facts[key]
    facts |= {fact.key: fact for fact in new if fact.key.startswith(prefix)}


def _set_device(facts: Facts, name: str, own: Facts, load: Load) -> None:
    """A device of the library in the place of the base's, with what it says of collectives over its
    links; where it draws another power, what its node draws is not known."""
    per_node = own.get("node.devices", facts.get("node.devices"))
    devices = per_node.value if per_node and is_count(per_node.value) else 0
    new = device_facts(name, devices, load)
    about = _OF_DEVICE.format(gpu_of(name)["name"])
    new = {key: replace(fact, inherited=fact.inherited or about) for key, fact in new.items()}
    if _text(new, "device.power.max") != _text(facts, "device.power.max"):
        _replace_table(facts, "power.", ())
    links = {key: fact for key, fact in new.items() if key.startswith(_LINKS)}
    if f"{_LINKS}bandwidth" in links:
        _replace_table(facts, _LINKS, links.values())
    _replace_table(facts, "device.", new.values())
    beside = (_LINKS, "software.")
    facts |= {key: fact for key, fact in new.items() if key.startswith(beside) and key in facts}
    for gone in gpu_of(name).get("without", ()):
        _replace_table(facts, gone, ())


def _join(facts: Facts, own: Facts) -> None:
    """The file's own facts in the place of those that were taken over, and of what contradicts
    them."""
    kind = "interconnect.kind"
    if kind in own and _text(own, kind) != _text(facts, kind):
        _replace_table(facts, "interconnect.", ())
    if any(key in own for key in _JOINS):
        for key in _JOINS:
            facts.pop(key, None)
    before = dict(facts)
    facts |= own
    _follow_devices(facts, before, own)
    _follow_network(facts, before, own)
    if "node.links.switch" not in facts:
        for key in [key for key in facts if key.startswith("software.nvls.") and key not in own]:
            del facts[key]


def _follow_devices(facts: Facts, before: Facts, own: Facts) -> None:
    """The NICs and links of a node of another size, whose power is not known."""
    old, new, nics = (
        _count(*each)
        for each in ((before, "node.devices"), (facts, "node.devices"), (facts, "node.nics.count"))
    )
    if "node.devices" in own and old and new and old != new:
        if nics and "node.nics.count" not in own:
            nics = nics * new // old or 1
            _follow(facts, own, "node.nics.count", nics)
        if "node.links.pairs" in facts and "node.links.pairs" not in own:
            kept = [pair for pair in facts["node.links.pairs"].value if max(pair[:2]) < new]
            _follow(facts, own, "node.links.pairs", tuple(kept))
        if not any(key.startswith("power.") for key in own):
            _replace_table(facts, "power.", ())
    if nics and new and ("node.devices" in own or "node.nics.count" in own):
        _follow(facts, own, "node.nics.of_device", spread(new, nics))


def _follow_network(facts: Facts, before: Facts, own: Facts) -> None:
    """The size of a fat tree, its rails and the rate of its links, where they were the node's."""
    if _text(facts, "interconnect.kind") != "fat-tree":
        return
    nodes, each = _count(facts, "nodes"), _count(facts, "interconnect.nodes_per_unit")
    if nodes and each and "nodes" in own:
        _follow(facts, own, "interconnect.units", -(-nodes // each))
        _follow(facts, own, "interconnect.size", FIXED)
    for key, of in (
        ("interconnect.rails", "node.nics.count"),
        ("interconnect.link_bandwidth", "node.nics.bandwidth"),
    ):
        if _text(before, key) == _text(before, of) != _text(facts, of):
            _follow(facts, own, key, facts[of].value)


def _follow(facts: Facts, own: Facts, key: str, value: Any) -> None:
    if key not in own:
        facts[key] = Fact(key, value, _FOLLOWS, "medium")


def _count(facts: Facts, key: str) -> int:
    """A count that the facts have; 0 where they have none, or one that will be refused."""
    value = facts[key].value if key in facts else 0
    return value if is_count(value) else 0


def is_count(value: object) -> bool:
    """Whether a value of a file is a whole number above 0, and no more than any count is."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_COUNT


def _text(facts: Facts, key: str) -> str:
    return facts[key].text if key in facts else ""
