"""Measured tables of collectives: reading them, and which machine and collective each measured.

A file has the form {"tables": {name: table}}, or is that inner object alone. A table has machine,
op, library, columns, rows and a source; bytes and seconds (or bytes_per_second) are among its
columns, and devices unless all rows share one count. Which variant of which machine that makes,
the rules of data/network_rules.json say: the first whose words are all in the table's fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from topologies.errors import SimgptError
from topologies.files.printable import path_shown
from topologies.files.reading import ANSWER_BYTES, UserFile, shipped_text
from topologies.hardware.software import Kind
from topologies.records import record

KIND_OF_OP: dict[str, Kind] = {
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "broadcast": "broadcast",
    "all_to_all": "all_to_all",
    "p2p": "send_recv",
    "p2p_latency": "send_recv",
    "p2p_bandwidth": "send_recv",
}
_PER_RANK = ("bytes contributed per rank", "bytes per rank pair")
LEAST, MOST = 1e-30, 1e30  # of seconds, bytes and bytes per second
MOST_DEVICES = 10_000_000
_SECONDS = ("seconds", "seconds_median", "seconds_out_of_place")


class TableError(SimgptError):
    """A file of measured tables that cannot be read as such."""


_FILE = UserFile("file of measured tables", TableError, ANSWER_BYTES)


@record
class MeasuredRow:
    """One measurement: group, the size as its table gives it, the payload as we count it, time."""

    devices: int
    nodes: int
    size_bytes: float
    payload_bytes: float
    seconds: float


@record
class Measured:
    """A table that we can predict: its variant, its collective, its rows."""

    name: str
    variant: str
    kind: Kind
    rows: tuple[MeasuredRow, ...]


@record
class Skipped:
    """A table that we cannot predict, and why."""

    name: str
    reason: str


def read_tables(path: Path | None = None) -> dict[str, dict[str, Any]]:
    """The tables of a file by name; without a file, those that come with simgpt."""
    if path is None:
        document = _FILE.parsed(shipped_text("validation", "data/network.json"), "network.json")
    else:
        document = _FILE.parsed(_FILE.text(path), path_shown(path))
    tables = document.get("tables", document) if isinstance(document, dict) else None
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise TableError(f"{path} holds no tables: it should be an object of tables by name")
    if not tables:
        raise TableError(f"{path} holds no tables")
    return tables


def measured(
    name: str, table: Mapping[str, Any], per_node: Mapping[str, int]
) -> Measured | Skipped:
    """One table as measurements; `per_node` has the devices in a node by machine."""
    kind = KIND_OF_OP.get(str(table.get("op")))
    if kind is None:
        return Skipped(name, f"{table.get('op')} is not a collective")
    rule = _rule(name, table)
    if "variant" not in rule:
        return Skipped(name, rule["reason"])
    variant = rule["variant"]
    machine = variant.partition(":")[0]
    if machine not in per_node:
        return Skipped(name, f"no machine is called {machine}")
    return Measured(name, variant, kind, _rows(name, table, per_node[machine]))


@cache
def _mapping() -> dict[str, Any]:
    text = shipped_text("validation", "data/network_rules.json")
    mapping: dict[str, Any] = _FILE.parsed(text, "network_rules.json")
    return mapping


def fitted_tables() -> frozenset[str]:
    """The shipped tables that the fit saw a part of."""
    return frozenset(_mapping()["fitted"])


def explanation_of(name: str) -> str:
    """Why a shipped table is predicted badly, where that is known."""
    return str(_mapping()["explanations"].get(name, ""))


def _rule(name: str, table: Mapping[str, Any]) -> dict[str, str]:
    fields = {**table, "name": name}
    rules: list[dict[str, str]] = _mapping()["rules"]
    for rule in rules:
        asked = {key: word for key, word in rule.items() if key not in ("variant", "reason")}
        if all(word.lower() in str(fields.get(key, "")).lower() for key, word in asked.items()):
            return rule
    what = f"{table.get('library', 'an unnamed library')} on {table.get('machine', '?')}"
    return {"reason": f"no variant of a machine stands for {what}"}


def _rows(name: str, table: Mapping[str, Any], per_node: int) -> tuple[MeasuredRow, ...]:
    columns, rows = table.get("columns"), table.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list):
        raise TableError(f"table {name} must have columns and rows, both lists")
    if not all(isinstance(column, str) for column in columns):
        raise TableError(f"table {name} has columns {columns}, of which some are no names")
    if "bytes" not in columns or not {*_SECONDS, "bytes_per_second"} & {*columns}:
        raise TableError(
            f"table {name} has columns {columns}, but must have bytes and seconds or "
            "bytes_per_second"
        )
    if "devices" not in columns and "devices" not in table:
        raise TableError(f"table {name} names no devices, neither as a column nor beside it")
    for row in rows:
        if not isinstance(row, list):
            raise TableError(f"table {name} has {row} among its rows, which is not a list of cells")
    return tuple(_row(name, table, dict(zip(columns, row, strict=False)), per_node) for row in rows)


def _row(
    name: str, table: Mapping[str, Any], cells: Mapping[str, Any], per_node: int
) -> MeasuredRow:
    origin = f"table {name}"
    time = next((column for column in (*_SECONDS, "bytes_per_second") if column in cells), "")
    devices = _count({**table, **cells}, "devices", origin)
    within = _count({"devices_per_node": per_node, **table}, "devices_per_node", origin)
    nodes = _count({"nodes": -(-devices // within), **table}, "nodes", origin)
    size, measured = _number(cells, "bytes", origin), _number(cells, time or "seconds", origin)
    return MeasuredRow(
        devices=devices,
        nodes=nodes,
        size_bytes=size,
        payload_bytes=size * devices if table.get("size_meaning") in _PER_RANK else size,
        seconds=size / measured if time == "bytes_per_second" else measured,
    )


def _number(given: Mapping[str, Any], key: str, origin: str) -> float:
    value = given.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST < value < MOST:
        raise TableError(f"{origin} has {key} = {value}, which is not a positive number")
    return float(value)


def _count(given: Mapping[str, Any], key: str, origin: str) -> int:
    value = _number(given, key, origin)
    if value != int(value) or value > MOST_DEVICES:
        most = f"a whole number of at most {MOST_DEVICES:,}"
        raise TableError(f"{origin} has {key} = {given[key]}, which is not {most}")
    return int(value)
