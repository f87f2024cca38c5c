"""The machine that a published run ran on: one of ours by its name, or built from its columns; in
the environment that its notes tell of, by the rules of data/environments.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from topologies.environments import in_environment
from topologies.files.reading import shipped_toml
from topologies.hardware.device_library import gpu_of
from topologies.hardware.segments import segments_of
from topologies.machine import Machine
from topologies.machine_files import build_machine
from topologies.parts import Parts
from topologies.session import session_cached
from topologies.shipped import machine_names, variant_names
from validation.published.runs import PublishedRun

SHIPPED_AS = {"JUPITER": "jupiter-booster"}  # machines that are called otherwise in the rows


def machine_of(run: PublishedRun) -> Machine:
    """The machine of a row, with as many nodes as it needs."""
    return _built(parts_of(run), *environment_of(run))


def environment_of(run: PublishedRun) -> tuple[str, tuple[str, ...]]:
    """The variant of its machine's software that a row ran with, "" for the usual one, and the
    environments of its job."""
    met = [rule for rule in _rules() if _is_met(rule, run)]
    variants = [rule["variant"] for rule in met if rule.get("variant") in _variants_of(run)]
    found = dict.fromkeys(rule["environment"] for rule in met if "environment" in rule)
    return (variants or [""])[0], tuple(found)


@cache
def _rules() -> list[Mapping[str, Any]]:
    return list(shipped_toml("validation", "data/environments.toml")["rule"])


def _is_met(rule: Mapping[str, Any], run: PublishedRun) -> bool:
    def noted(pattern: str) -> bool:
        return re.search(pattern, run.text("notes"), re.IGNORECASE) is not None

    columns = rule.get("columns", {}).items()
    has_words = all(word in run.text(name).lower() for name, word in columns)
    return has_words and noted(rule.get("notes", "")) and not noted(rule.get("unless", "(?!)"))


def _variants_of(run: PublishedRun) -> list[str]:
    """The variants of the machine that a row names; none of a machine that is built."""
    name = parts_of(run).name.lower()
    return variant_names(name) if name in machine_names() else []


def parts_of(run: PublishedRun) -> Parts:
    """The parts that a row names, with as many nodes as it needs."""
    per_node = run.whole("gpus_per_node") or 0
    gpus = run.whole("gpus_total") or 1
    return Parts(
        gpu=run.text("gpu"),
        nodes=segments_of(per_node or 8, _tray(run.text("gpu"), per_node), gpus).nodes,
        devices_per_node=per_node,
        nics_per_node=run.whole("nics_per_node") or 0,
        nic_bits_per_s=(run.real("nic_gbps") or 0.0) * 1e9,
        fabric=run.text("fabric").lower(),
        name=SHIPPED_AS.get(run.text("machine"), run.text("machine")),
    )


def _tray(gpu: str, per_node: int) -> int:
    """Devices of a tray, where nodes are racks of trays."""
    own = gpu_of(gpu).get("set", {}).get("node.tray")
    return int(own["value"]) if own and per_node % own["value"] == 0 else 0


@session_cached(256)
def _built(parts: Parts, variant: str, environments: tuple[str, ...]) -> Machine:
    machine = build_machine(parts, variant)
    for name in environments:
        if machine.node.nics.count:
            machine = in_environment(machine, name)
    return machine
