"""Slurm's short form of a list of hosts: `frontier[00001-00064,00100]`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from topologies.errors import MachineError

_NAME = re.compile(r"([A-Za-z][A-Za-z0-9_-]*?)(\d+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
MOST_NODES = 1_000_000  # of a list, and of a machine
_MOST_DIGITS = 18
_MOST_LETTERS = 300  # of a name, which a search for its number takes the square of
_LIKE = "write it like frontier[00001-00064,00100]"


def node_numbers(hostlist: str) -> list[int]:
    """The numbers of the nodes, which are the digits in their names, in the order of the list.

    >>> node_numbers("nid[008-010,100],nid007")
    [8, 9, 10, 100, 7]
    """
    if hostlist.count("[") != hostlist.count("]"):
        raise MachineError(f'the brackets of "{hostlist}" do not match; {_LIKE}')
    ranges = [found for item in _items(hostlist) for found in _ranges_of(item)]
    if sum(map(len, ranges)) > MOST_NODES:
        raise MachineError(f'"{hostlist}" names more than {MOST_NODES:,} nodes')
    numbers = [number for found in ranges for number in found]
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


def _ranges_of(item: str) -> Iterator[range]:
    prefix, bracket, rest = item.partition("[")
    if not bracket:
        if len(item) > _MOST_LETTERS:
            raise MachineError(f'"{item}" is longer than the name of any host; {_LIKE}')
        name = _NAME.fullmatch(item)
        if name is None:
            raise MachineError(f'"{item}" is not a host with a number; {_LIKE}')
        yield _range(f'"{item}"', name[2], name[2])
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
        yield _range(f'"{part}" in "{item}"', match[1], match[2] or match[1])


def _range(part: str, first: str, last: str) -> range:
    if max(len(first), len(last)) > _MOST_DIGITS:
        raise MachineError(f"{part} has a number of more than {_MOST_DIGITS} digits; {_LIKE}")
    found = range(int(first), int(last) + 1)
    if not found:
        raise MachineError(f"{part} ends before it starts; {_LIKE}")
    return found
