"""Tables of nccl-tests or rccl-tests, read from any log that contains them.

A table's rows have size, count and type, perhaps an operator and a root, and a time in us with two
bandwidths, out of place and in place, each perhaps with a column of errors (`#wrong`, `error`, a
number or N/A). Everything else is passed over but for what says which collective it was (the name
of the program), and how many ranks and nodes there were (`#  Rank  3 … on HOST device …`, or else
the printed bandwidths, or what one process has by `nThread` and `nGpus`).

Source: NVIDIA/nccl-tests and ROCm/rccl-tests, src/common.cu (PrintBenchmarkHeader, the rows) and
doc/PERFORMANCE.md (bus bandwidth). `size` is the gathered size of an all-gather, and what a rank
holds before a reduce-scatter or an all-to-all, as ours is.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from topologies.errors import SimgptError
from topologies.files.printable import path_shown
from topologies.files.reading import TABLE_BYTES, UserFile
from topologies.hardware.software import Kind
from topologies.records import record

MOST_RANKS = 1_000_000
MOST_US = 1e12  # of one collective
KINDS: dict[str, Kind] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "sendrecv": "send_recv",
    "send_recv": "send_recv",
    "broadcast": "broadcast",
}
_PROGRAM = re.compile(rf"(?<![a-z])({'|'.join(KINDS)})(?:_perf)?(?![a-z])", re.IGNORECASE)
_BEGIN = re.compile(r"# *nThread|minBytes")
_OF_PROCESS = re.compile(r"nThread\s+(\d{1,4})\s+nGpus\s+(\d{1,4})\b")
_RANK = re.compile(r"\bRank\s+(\d{1,7})\b.*?\bon\s+(\S+)\s+device\b")
_TAG = re.compile(r"\[\d+(?:,\d+)?\](?:<std\w+>:)?")  # of mpirun, before and amid what a rank says
_ROW = re.compile(
    r"(?<![\w.])(\d{1,19})\s+(\d{1,19})\s+"
    r"(?:u?int\d*|char|half|float\d*|double|bfloat16|f(?:p|loat)?8\w*)\s+(.*)$"
)
_OPERATORS = ("sum", "prod", "min", "max", "avg", "mulsum", "all", "none")


class NcclTestsError(SimgptError):
    """A file that has no table of nccl-tests, or one that does not say what it measured."""


_FILE = UserFile("table of nccl-tests", NcclTestsError, TABLE_BYTES)


@record
class Row:
    """One size, and the median of its times out of place."""

    size_bytes: float
    seconds: float


@record
class NcclTable:
    """One collective on one group of ranks; `nodes` is 0 where no line names the hosts."""

    kind: Kind
    ranks: int
    nodes: int
    rows: tuple[Row, ...]


@dataclass
class _Section:
    """What the lines of one table said so far."""

    kind: Kind | None = None
    ranks: int = 0
    of_process: int = 0
    hosts: set[str] = field(default_factory=set)
    operator: str = ""
    in_place_checked: bool = True
    seconds: dict[float, list[float]] = field(default_factory=dict)
    ratios: list[tuple[float, float]] = field(default_factory=list)


def read_nccl_tests(path: Path, *, kind: Kind | None = None, ranks: int = 0) -> list[NcclTable]:
    """Read the tables of a file; `kind` and `ranks`, if given, hold for all of them.

    A NcclTestsError says that there is no table, or what a table lacks and which option gives it,
    or that the two contradict its bandwidths.
    """
    name, text = path_shown(path), _FILE.text(path)
    named = _kind_in(path.name)
    tables = []
    for section in _sections(text.splitlines()):
        tables.append(_table(section, name, kind or section.kind or named, ranks))
        if kind or ranks:
            _check_given(section, name, tables[-1])
    if not tables:
        raise NcclTestsError(
            f"{name} has no table of nccl-tests or rccl-tests: no line has a size, a count, a "
            "type, a time in us and two bandwidths"
        )
    return tables


def _sections(lines: Sequence[str]) -> Iterator[_Section]:
    """The tables' sections that have rows: each begins where the program prints its settings."""
    section, program = _Section(), None
    for line in lines:
        if _BEGIN.search(line) and section.seconds:
            yield section
            section = _Section()
        if found := _OF_PROCESS.search(line):
            section.of_process = int(found[1]) * int(found[2])
        if row := _ROW.search(_TAG.sub(" ", line)):
            section.kind = section.kind or program
            _add(section, float(row[1]), row[3].split())
        elif found := _RANK.search(line):
            section.ranks = max(section.ranks, int(found[1]) + 1)
            section.hosts.add(found[2])
        else:
            program = _kind_in(line) or program
    if section.seconds:
        yield section


def _kind_in(line: str) -> Kind | None:
    found = _PROGRAM.search(line)
    return KINDS[found[1].lower()] if found else None


def _add(section: _Section, size: float, words: list[str]) -> None:
    """Add a row to a section; a line that only looks like a row is ignored."""
    if words and words[0].lower() in _OPERATORS:
        section.operator = words.pop(0).lower()
    cells = [None if word.upper() == "N/A" else _number(word) for word in words]
    if len(cells) in (5, 7, 9):  # the first one is the root
        cells = cells[1:]
    if len(cells) not in (3, 4, 6, 8) or None in cells[:3] or size <= 0:
        return
    time_us, algorithm, bus = (float(cell or 0.0) for cell in cells[:3])
    if not 0 < time_us < MOST_US:
        return
    section.seconds.setdefault(size, []).append(time_us / 1e6)
    section.in_place_checked &= not (len(cells) == 8 and cells[7] is None)
    if algorithm >= 1:  # printed to 0.01 GB/s
        section.ratios.append((algorithm, bus))


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _table(section: _Section, name: str, kind: Kind | None, ranks: int) -> NcclTable:
    kind = kind or _kind_of_bandwidths(section)
    if kind is None:
        raise NcclTestsError(
            f"{name} does not name its collective; give, for example, --collective all_gather"
        )
    ranks = ranks or section.ranks or _ranks_of_bandwidths(section, kind)
    ranks = ranks or (section.of_process if section.of_process > 1 else 0)
    if not 2 <= ranks <= MOST_RANKS:
        raise NcclTestsError(
            f"{name} does not say how many ranks ran (it has no lines “#  Rank 0 …”); give, for "
            "example, --devices 16"
        )
    rows = sorted((size, statistics.median(each)) for size, each in section.seconds.items())
    hosts = len(section.hosts) if section.ranks == ranks else 0
    return NcclTable(kind, ranks, hosts, tuple(Row(*row) for row in rows))


def _check_given(section: _Section, name: str, table: NcclTable) -> None:
    """Refuse what a user gives and the printed bandwidths contradict."""
    low, high = _share_of_bandwidths(section)
    if not low <= (share := _bus_share(table.kind, table.ranks)) <= high:
        raise NcclTestsError(
            f"{name}: its bus bandwidth is {(low + high) / 2:.3f} times the algorithm's, and that "
            f"of {table.kind} on {table.ranks} devices is {share:.3f} times it; give the "
            "--collective and the --devices that were measured"
        )


def _kind_of_bandwidths(section: _Section) -> Kind | None:
    """The collective by its operator and by bus over algorithm bandwidth; none where several
    have these."""
    largest = max(section.ratios, default=(0.0, 0.0))
    ratio = largest[1] / largest[0] if largest[0] else 0.0
    if section.operator == "sum":
        return "all_reduce" if ratio > 1 else "reduce_scatter" if 0 < ratio < 0.99 else None
    if section.operator == "none" and ratio:
        if ratio > 0.999:
            return "send_recv" if section.ranks else None
        return "all_gather" if section.in_place_checked else "all_to_all"
    return None


def _ranks_of_bandwidths(section: _Section, kind: Kind) -> int:
    """The one number of ranks whose factor gives the printed bus bandwidth, to its last digit; 0
    where several do, as they do for many ranks."""
    if kind in ("send_recv", "broadcast") or not section.ratios:
        return 0
    low, high = _share_of_bandwidths(section)
    met = [n for n in range(2, 257) if low <= _bus_share(kind, n) <= high]
    return met[0] if len(met) == 1 else 0


def _share_of_bandwidths(section: _Section) -> tuple[float, float]:
    """The least and the most that bus over algorithm bandwidth can be, of their last digits."""
    low, high = 0.0, 2.0
    for algorithm, bus in section.ratios:
        low = max(low, (bus - 0.006) / (algorithm + 0.005))
        high = min(high, (bus + 0.006) / (algorithm - 0.005))
    return low, high


def _bus_share(kind: Kind, ranks: int) -> float:
    """Bus over algorithm bandwidth. Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md."""
    whole = 2.0 if kind == "all_reduce" else 1.0
    return 1.0 if kind in ("send_recv", "broadcast") else whole * (ranks - 1) / ranks


def with_nodes(table: NcclTable, per_node: int) -> NcclTable:
    """The table with its nodes: those that its lines name, or as few as hold its ranks."""
    least = -(-table.ranks // per_node)
    return replace(table, nodes=max(table.nodes, least))
