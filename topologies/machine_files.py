"""Finding, reading and changing machines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from topologies.bases import derived
from topologies.build import machine_of_parts
from topologies.environments import ENVIRONMENTS, in_environment
from topologies.errors import MachineError
from topologies.files.facts import Fact
from topologies.files.printable import path_shown
from topologies.files.reading import UserFile
from topologies.files.schema import Leaf, nearest, nearest_key, value_of
from topologies.files.units import format_quantity, multiple_of, quantity, times
from topologies.hardware.device_library import exact_gpu
from topologies.machine import (
    Machine,
    check_unmeasured,
    known_keys,
    machine_from_dict,
    machine_from_facts,
)
from topologies.parts import Parts
from topologies.parts_text import is_parts, parse_parts, parts_text
from topologies.session import session_cached
from topologies.shipped import FOLDER, machine_names
from topologies.variants import as_variant

# Rates of one link or NIC, of which there are several: what is meant is at most so many times as
# much, as NICs of 800 Gbit/s in the place of 200.
ONE_OF_SEVERAL = ("node.links.bandwidth", "node.nics.bandwidth", "interconnect.link_bandwidth")
MOST_OF_KNOWN = 4.0
_FILE = UserFile("machine", MachineError)
_SETTING = UserFile("value", MachineError)


def load_machine(name_or_path: str, above: tuple[Path, ...] = ()) -> Machine:
    """Loads a machine by its name, from a TOML or JSON file, or by its parts.

    A variant of its software follows after a colon; without it, the first of the file is taken. An
    environment of the job, such as `no-gdr`, follows after another (topologies/environments.py).
    Parts are a text such as `64x8xH100,8xNDR`, which `parse_parts` explains; a machine of parts
    that say no name is called by them. A file that has a `base` is read by `derived`; `above` are
    the files that build on this one. Within a session, a machine given by its name or parts is
    built once; a user's file may change: it is read each time, and built once for each text.

    >>> load_machine("frontier").devices_per_node
    8
    """
    before, _, after = name_or_path.rpartition(":")
    if before and after in ENVIRONMENTS:
        return in_environment(load_machine(before, above), after)
    machine, _, environment = before.rpartition(":")
    if machine and environment in ENVIRONMENTS:
        raise MachineError(
            f"{environment} stands before a variant in {name_or_path}; write "
            f"{machine}:{after}:{environment}"
        )
    name, variant = (before, after) if before else (name_or_path, "")
    path = Path(name)
    if path.suffix in (".toml", ".json"):
        return _of_file(path, variant, path.name, above)
    return _shipped(name, variant) if name in machine_names() else _of_parts(name, variant)


@session_cached(256)
def _shipped(name: str, variant: str) -> Machine:
    return _of_file(FOLDER / f"{name}.toml", variant, name, ())


def _of_file(path: Path, variant: str, origin: str, above: tuple[Path, ...]) -> Machine:
    built = _of_text(_FILE.text(path), path, variant, origin)
    if built is None:
        return derived(_document(path), variant, path, load_machine, above)
    return built


@session_cached(64)
def _of_text(text: str, path: Path, variant: str, origin: str) -> Machine | None:
    """The machine that a file with this text is; none if it takes values from other files."""
    document = _table(_FILE.parsed(text, path_shown(path), toml=path.suffix == ".toml"), path)
    if has_base(document):
        return None
    return machine_from_dict(as_variant(document, variant, origin), path.name)


def has_base(document: Mapping[str, Any]) -> bool:
    """Whether a machine's document takes values from another machine, device or library."""
    tables = [document.get(name) for name in ("device", "software")]
    named = (isinstance(t, str) or (isinstance(t, Mapping) and "base" in t) for t in tables)
    return "base" in document or any(named)


@session_cached(256)
def _of_parts(name: str, variant: str) -> Machine:
    """The machine whose parts a text names."""
    if not is_parts(name):
        if device := _as_device(name):
            raise MachineError(f"{name} is a device: give nodes of it, as in {device}")
        raise MachineError(
            f'no machine is called "{name}"; known: {", ".join(machine_names())}'
            f"{nearest(name, machine_names())}; or give a .toml or .json file, or the machine's "
            "parts, as in 64x8xH100,8xNDR"
        )
    parts = parse_parts(name)
    if not parts.name:
        parts = replace(parts, name=parts_text(parts))
    return build_machine(parts, variant)


def build_machine(parts: Parts, variant: str = "") -> Machine:
    """The machine with these parts, as `machine_of_parts` makes it of shipped ones."""
    return machine_of_parts(parts, variant, load_machine)


def _as_device(name: str) -> str:
    """Machines of a device of this name, by their parts and by their own names; "" of none."""
    try:
        entry = exact_gpu(re.sub(r"[\s_]+", "-", name.strip()))
    except MachineError:
        return ""
    gpu, devices = str(entry["name"]), max(map(int, entry["nodes"]), default=8)
    shipped = [each for each in machine_names() if each.endswith(f"-{gpu}")]
    return ", or ".join([f"8x{devices}x{gpu.upper()},{devices}xNDR", *shipped])


def _document(path: Path) -> dict[str, Any]:
    return _table(_FILE.document(path), path)


def _table(document: Any, path: Path) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise MachineError(f"{path} does not hold a machine, but a {type(document).__name__}")
    return document


def with_settings(machine: Machine | str, settings: Mapping[str, object]) -> Machine:
    """A machine with some of its file's values replaced; their source becomes the user.

    Keys are those of the file (`device.peak_flops.bf16`), values its texts (`"400 TFLOP/s"`);
    numbers and lists may be given as text too. `software.all_reduce = "ring"` and its like are
    short for `software.algorithm.all_reduce`, and `network.` is another word for `interconnect.`.
    `0.5x` is half of what the machine itself says.

    >>> half = with_settings("perlmutter", {"node.nics.bandwidth": "0.5x"})
    >>> half.node.nics.bytes_per_s / load_machine("perlmutter").node.nics.bytes_per_s
    0.5
    """
    base = load_machine(machine) if isinstance(machine, str) else machine
    facts = {fact.key: fact for fact in base.entries}
    for given, value in settings.items():
        fact = _setting(base, given, value)
        facts[fact.key] = fact
    return machine_from_facts(tuple(facts.values()), base.profile, base.name)


def check_setting(machine: Machine, given: str, value: object) -> None:
    """Refuses a setting that the machine does not know, or whose value is not of its kind."""
    fact = _setting(machine, given, value)
    value_of(known_keys(machine.interconnect.kind)[fact.key], fact.value, machine.name)


def _setting(base: Machine, given: str, value: object) -> Fact:
    known = known_keys(base.interconnect.kind)
    name = re.sub(r"^network\.", "interconnect.", given)
    short = f"software.algorithm.{name.removeprefix('software.')}"
    key = short if name.startswith("software.") and short in known else name
    if key not in known:
        raise MachineError(f"{key} is not a key of a machine{nearest_key(key, known)}")
    check_unmeasured(base, key)
    factor = multiple_of(value)
    if factor is not None and known[key].type is not str:
        return Fact(key, _multiplied(base, known[key], factor, value), f"set by the user: {value}")
    _check_rate(base, key, value)
    return Fact(key, _parsed(known[key], value), "set by the user")


def rate_words(machine: Machine, key: str) -> str:
    """What the rate of one link or one NIC comes to; nothing of other keys.

    >>> rate_words(load_machine("dgx-h100"), "node.links.bandwidth")
    '18 x 25 GB/s = 450 GB/s each way for each device'
    """
    node = machine.node
    links = node.links.switch or node.links.all_pairs * (node.devices - 1)
    count, rate, whose = {
        "node.links.bandwidth": (links, node.links.bytes_per_s, "device"),
        "node.nics.bandwidth": (node.nics.count, node.nics.bytes_per_s, "node"),
    }.get(key, (0, 0.0, ""))
    if not count:
        return ""
    one, total = (format_quantity(value, "bytes/s") for value in (rate, count * rate))
    return f"{count} x {one} = {total} each way for each {whose}"


def _check_rate(base: Machine, key: str, value: object) -> None:
    """Refuses what is probably the rate of all links or NICs together for that of one."""
    known = next((fact.value for fact in base.entries if fact.key == key), None)
    if key not in ONE_OF_SEVERAL or known is None:
        return
    given, own = (quantity(each, "bytes/s") for each in (value, known))
    if given > MOST_OF_KNOWN * own:
        words = rate_words(base, key) or f"known: {known}"
        raise MachineError(
            f"{key} = {value} is {given / own:g} times what {base.name} has for one: {words}; "
            f"write {given / own:g}x if one is to be that fast"
        )


def _multiplied(base: Machine, leaf: Leaf, factor: float, given: object) -> Any:
    """So many times what the machine says for a key; a MachineError where it says no number."""
    own = next((fact.value for fact in base.entries if fact.key == leaf.key), None)
    if leaf.unit and own is not None:
        return times(factor, own, leaf.unit)
    if isinstance(own, bool) or not isinstance(own, int | float):
        why = "does not say it" if own is None else f"has {own!r} there"
        raise MachineError(
            f"{leaf.key} = {given} needs a number to multiply, but {base.name} {why}"
        )
    return factor * own


def _parsed(leaf: Leaf, value: object) -> Any:
    if leaf.unit or leaf.type is str or not isinstance(value, str):
        return _tuples(value)
    try:
        return _tuples(_SETTING.parsed(value, leaf.key))
    except MachineError:
        return value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value
