"""Placements by name: `contiguous`, `scattered:30:seed=7`, `hosts:frontier[00001-00064]`."""

from __future__ import annotations

from topologies.errors import MachineError
from topologies.files.hostlist import node_numbers
from topologies.files.schema import nearest
from topologies.machine import Machine
from topologies.placement import (
    Placement,
    check_order,
    contiguous,
    from_hostlist,
    random,
    scattered,
    scheduler,
)

MOST_DIGITS = 18  # of a seed
POLICIES = ("contiguous", "scattered", "random", "hosts", "scheduler")
_OPTIONS = {"scattered": ("seed", "order"), "random": ("seed", "order"), "scheduler": ("seed",)}


def parse_placement(text: str, machine: Machine, ranks: int) -> Placement:
    """Places ranks as the text says.

    `contiguous`, `scattered:GROUPS`, `random`, `scheduler` or `hosts:LIST`; after it, where
    nodes are drawn, `:seed=N`, and for `scattered` and `random` `:order=shuffled` (else `sorted`).
    """
    name, _, rest = text.partition(":")
    if name == "hosts" and rest:
        return from_hostlist(machine, rest, ranks)
    groups, seed, order = _read(text)
    if name == "scattered":
        return scattered(machine, ranks, int(groups), seed, order)
    if name == "random":
        return random(machine, ranks, seed, order)
    return scheduler(machine, ranks, seed) if name == "scheduler" else contiguous(machine, ranks)


def check_placement(text: str) -> None:
    """Refuses a text that places no ranks on any machine."""
    if text.startswith("hosts:"):
        node_numbers(text.removeprefix("hosts:"))
    else:
        _read(text)


def _read(text: str) -> tuple[str, int, str]:
    """The groups, the seed and the order of nodes that a placement's text gives."""
    name, _, rest = text.partition(":")
    words = rest.split(":") if rest else []
    groups = words.pop(0) if name == "scattered" and words else ""
    if name not in POLICIES or name == "hosts" or (name == "scattered" and not _is_count(groups)):
        raise MachineError(
            f'placement "{text}" is not known{nearest(name, POLICIES)}; try contiguous, scheduler, '
            "scattered:30, scattered:30:seed=7, random:seed=1 or hosts:NAME[00001-00064]"
        )
    return groups, *_options(text, words, _OPTIONS.get(name, ()))


def _options(text: str, words: list[str], allowed: tuple[str, ...]) -> tuple[int, str]:
    given = dict(word.partition("=")[::2] for word in words)
    for key, value in given.items():
        if key not in allowed or (key == "seed" and not _is_count(value)):
            wanted = " and ".join(f"{name}=…" for name in allowed) or "no options"
            raise MachineError(f'placement "{text}" has {key}={value}, but takes {wanted}')
    check_order(order := given.get("order", "sorted"))
    return int(given.get("seed", "0")), order


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= MOST_DIGITS
