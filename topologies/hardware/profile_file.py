"""A profile as a machine's file has it: which columns its tables have, and what cells may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topologies.errors import MachineError
from topologies.files.printable import shown
from topologies.files.schema import LEAST_NUMBER, nearest
from topologies.hardware.profile import MeasuredTable, Profile
from topologies.records import record

DAY_S = 86_400.0
FORMS = 3  # of matmuls, by which of the two operands is stored the other way round
MOST_SIZE = 2**50  # up to here the logarithms of any two whole numbers differ


@record
class Column:
    """What the cells of a column may hold: numbers of `least` to `most`, whole ones or seconds."""

    least: float
    most: float
    whole: bool = True

    @property
    def words(self) -> str:
        """What a cell must be."""
        if not self.whole:
            return "a number above 0 and below a day" if self.least else "at least 0, below a day"
        return f"a whole number from {self.least:.0f} to {self.most:.0f}"

    def holds(self, cell: Any) -> bool:
        """Whether a cell may hold that."""
        if isinstance(cell, bool) or not isinstance(cell, int | float):
            return False
        if self.whole:
            return self.least <= cell <= self.most and cell == int(cell)
        return self.least <= cell < self.most


SIZE = Column(1, MOST_SIZE)
SECONDS, HOST_SECONDS = Column(LEAST_NUMBER, DAY_S, whole=False), Column(0, DAY_S, whole=False)
COLUMNS = {  # besides ranks, which are at most the machine's devices
    "form": Column(0, FORMS - 1),
    **dict.fromkeys(("m", "n", "k"), SIZE),
    **dict.fromkeys(("flops", "nbytes", "bytes"), SIZE),
    **dict.fromkeys(("rows", "heads", "width", "sequence"), SIZE),
    "seconds": SECONDS,
}
ATTENTION = ("ranks", "rows", "heads", "width", "sequence", "seconds")
TABLES = {  # by kind of op; of all others how long they take by their bytes
    "matmul": ("ranks", "form", "m", "n", "k", "seconds"),
    "batched_matmul": ("ranks", "form", "flops", "seconds"),
    "attention": ATTENTION,
    "attention_grad": ATTENTION,
}
OF_BYTES, COLLECTIVE = ("ranks", "nbytes", "seconds"), ("ranks", "bytes", "seconds")
_KEYS = ("kernels", "collectives", "provenance", "host")


def read_profile(document: Any, devices: int, origin: str) -> Profile:
    """The profile of a machine of so many devices, from the table `profile` of its file; a
    MachineError names the table and the row of what is wrong."""
    tables = _table(document, f"{origin}: profile")
    for key in tables:
        if key not in _KEYS:
            raise MachineError(
                f"{origin}: profile.{shown(key)} is not a key of a profile{nearest(key, _KEYS)}"
            )
    columns = COLUMNS | {"ranks": Column(1, devices)}
    found: dict[str, dict[str, MeasuredTable]] = {}
    for part in ("kernels", "collectives"):
        where = f"{origin}: profile.{part}"
        found[part] = {
            name: _measured(each, _wanted(part, name), columns, f"{where}.{shown(name)}")
            for name, each in _table(tables.get(part, {}), where).items()
        }
    return Profile(
        kernels=found["kernels"],
        collectives=found["collectives"],
        provenance=_provenance(tables.get("provenance", {}), f"{origin}: profile.provenance"),
        host=_host(tables.get("host", {}), f"{origin}: profile.host"),
    )


def _wanted(part: str, name: str) -> tuple[str, ...]:
    """The columns of a table of that name."""
    if part == "collectives":
        return COLLECTIVE
    return TABLES.get(name.partition("@")[0].partition(".")[0], OF_BYTES)


def _measured(
    document: Any, wanted: tuple[str, ...], columns: Mapping[str, Column], where: str
) -> MeasuredTable:
    table = _table(document, where)
    if table.keys() != {"columns", "rows"}:
        raise MachineError(f"{where} must have columns and rows, and nothing else")
    if table["columns"] != list(wanted):
        raise MachineError(
            f"{where} has the columns {shown(table['columns'])}; it must have {', '.join(wanted)}"
        )
    rows = table["rows"]
    if not isinstance(rows, list) or not rows:
        raise MachineError(f"{where} has no rows; each is a list of {', '.join(wanted)}")
    kinds = [(name, columns[name]) for name in wanted]
    return MeasuredTable(
        wanted, tuple(_row(row, kinds, f"{where}, row {at}") for at, row in enumerate(rows, 1))
    )


def _row(row: Any, kinds: list[tuple[str, Column]], where: str) -> tuple[float, ...]:
    if not isinstance(row, list) or len(row) != len(kinds):
        raise MachineError(f"{where} is {shown(row)}; it must have {len(kinds)} numbers")
    for (name, column), cell in zip(kinds, row, strict=True):
        if not column.holds(cell):
            raise MachineError(f"{where}: {name} = {shown(cell)} must be {column.words}")
    return tuple(map(float, row))


def _provenance(document: Any, where: str) -> dict[str, str]:
    for key, value in _table(document, where).items():
        if not isinstance(value, str):
            raise MachineError(f"{where}.{shown(key)} = {shown(value)} must be text")
    return dict(document)


def _host(document: Any, where: str) -> dict[str, float]:
    for key, value in _table(document, where).items():
        if not HOST_SECONDS.holds(value):
            raise MachineError(
                f"{where}.{shown(key)} = {shown(value)} must be seconds, {HOST_SECONDS.words}"
            )
    return {key: float(value) for key, value in document.items()}


def _table(document: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise MachineError(f"{where} = {shown(document)} must be a table")
    return document
