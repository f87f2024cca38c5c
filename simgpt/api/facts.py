"""Machines, models, comparisons and reports in Python."""

from __future__ import annotations

from collections.abc import Sequence
from os import fspath
from typing import TYPE_CHECKING, Any, Literal

from simgpt import tables
from simgpt.api.errors import NothingToDrawError
from simgpt.api.result import Cells, Result, Row, cell_of, flat

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.figure import Figure

    from simgpt.api.asking import Answered

SHOWN = 5  # names in the short form


class Listing(Result):
    """The machines or the models that come with simgpt."""

    def rows(self) -> list[Row]:
        """A row for each."""
        lists = (each for each in self._record.values() if isinstance(each, list))
        return [flat(row) for rows in lists for row in rows]

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [str(row["name"]) for row in self.rows()]

    def _short(self) -> str:
        names = self.names
        more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
        return ", ".join(names[:SHOWN]) + more

    def _table(self) -> tuple[Sequence[str], Cells]:
        rows = self.rows()
        columns = [key for key in rows[0] if all(key in row for row in rows)]
        return columns, [[cell_of(row[key]) for key in columns] for row in rows]


class Machine(Result):
    """What is known of a machine, and from where; `asked_for` is the name that it was asked by."""

    def __init__(self, asked: Answered, asked_for: str | PathLike[str]) -> None:
        super().__init__(asked)
        self._asked_for = fspath(asked_for)

    @property
    def name(self) -> str:
        """Its name."""
        return str(self._record["name"])

    @property
    def devices(self) -> int:
        """How many devices it has."""
        return int(self._record["devices"])

    def rows(self) -> list[Row]:
        """A row for each fact: `key`, `value`, `confidence` and `source`."""
        return [dict(fact) for fact in self._record["facts"]]

    def plot(self, part: Literal["node", "interconnect"] = "node") -> Figure:
        """A picture of a node with its links and NICs, or of the switches that join the nodes."""
        from simgpt.options import machine_of
        from topologies.figures import interconnect_figure, node_figure

        machine = machine_of(self._asked_for)
        return node_figure(machine) if part == "node" else interconnect_figure(machine)

    def _short(self) -> str:
        return f"{self.name}, {self._record['description']}"


class Model(Result):
    """A model: its fields, its parameters and the FLOPs of a sequence."""

    @property
    def name(self) -> str:
        """Its name."""
        return str(self._record["name"])

    @property
    def parameters(self) -> int:
        """How many parameters it has."""
        return int(self._record["parameters"])

    def _short(self) -> str:
        return f"{self.name}, {tables.count(self.parameters)} parameters"

    def _table(self) -> tuple[Sequence[str], Cells]:
        return [], [(key, cell_of(value)) for key, value in self._record.items()]


class Stack(Result):
    """What a software stack makes of a plan, with the source of each number."""

    @property
    def name(self) -> str:
        """Its name."""
        return str(self._record["name"])

    def _short(self) -> str:
        return f"{self.name}, {self._record['title']}"

    def _table(self) -> tuple[Sequence[str], Cells]:
        return [], [(key, cell_of(value)) for key, value in flat(self._record).items()]


class Validation(Result):
    """Predictions beside measurements."""

    @property
    def mape(self) -> float | None:
        """The mean absolute error as a share, where the comparison has one."""
        mape = self._record.get("mape")
        return None if mape is None else float(mape)

    def rows(self) -> list[Row]:
        """A row for each measurement."""
        lists = [self._record.get("rows"), *self._record.values()]
        rows = next((each for each in lists if isinstance(each, list) and each), [])
        return [flat(row) for row in rows if isinstance(row, dict)]

    def plot(self) -> Figure:
        """Predicted over measured steps."""
        from validation.report.answers import answers_in
        from validation.report.figures.scaling_figures import measured
        from validation.report.figures.style import drawing

        pairs = answers_in(self.to_dict(), "comparison").pairs
        if not any(pair.predicted_s is not None for pair in pairs):
            raise NothingToDrawError("this comparison has no measured steps to draw")
        with drawing():
            return measured(pairs)

    def _short(self) -> str:
        error = "" if self.mape is None else f", mean absolute error {tables.percent(self.mape)}"
        return f"{tables.several(len(self.rows()), 'row')}{error}"


class Report(Result):
    """A page or figures that were written: `paths` has where."""

    def rows(self) -> list[Row]:
        """A row for each file."""
        return [{"path": str(path)} for path in self.paths]

    def to_dict(self) -> dict[str, Any]:
        """The paths of the files."""
        return {"paths": [str(path) for path in self.paths]}

    def _short(self) -> str:
        return ", ".join(str(path) for path in self.paths)
