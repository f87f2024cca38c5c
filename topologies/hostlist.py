"""Slurm's short form of a list of hosts: `frontier[00001-00064,00100]`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from topologies.errors import MachineError

_NAME = re.compile(r"([A-Za-z][A-Za-z0-9_-]*?)(\d+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_LIKE = "write it like frontier[00001-00064,00100]"


def node_numbers(hostlist: str) -> list[int]:
    """The numbers of the nodes, which are the digits in their names, in the order of the list.

    >>> node_numbers("nid[008-010,100],nid007")
    [8, 9, 10, 100, 7]
    """
    if hostlist.count("[") != hostlist.count("]"):
        raise MachineError(f'the brackets of "{hostlist}" do not match; {_LIKE}')
    numbers = [n for item in _items(hostlist) for n in _numbers_of(item)]
    twice = [number for number, times in Counter(numbers).items() if times > 1]
    if twice:
        raise MachineError(f'"{hostlist}" names node {twice[0]} more than once')
    return numbers


def _items(hostlist: str) -> Iterator[str]:
    """Splits at the commas outside brackets."""
    depth, start = 0, 0
    for i, letter in enumerate(hostlist):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            yield hostlist[start:i].strip()
            start = i + 1
    yield hostlist[start:].strip()


def _numbers_of(item: str) -> Iterator[int]:
    prefix, bracket, rest = item.partition("[")
    if not bracket:
        name = _NAME.fullmatch(item)
        if name is None:
            raise MachineError(f'"{item}" is not a host with a number; {_LIKE}')
        yield int(name[2])
        return
    inside, _, after = rest.partition("]")
    if "[" in after:
        raise MachineError(f'"{item}" has several brackets, which are not supported; {_LIKE}')
    if after or any(letter.isdigit() for letter in prefix) or not prefix:
        raise MachineError(f'"{item}" is not letters and one bracket of numbers; {_LIKE}')
    for part in inside.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise MachineError(f'"{part}" in "{item}" is not a number or a range; {_LIKE}')
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise MachineError(f'"{part}" in "{item}" ends before it starts; {_LIKE}')
        yield from range(first, last + 1)
