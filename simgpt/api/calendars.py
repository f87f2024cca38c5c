"""When a whole training run is done, in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simgpt import tables
from simgpt.api.errors import NothingToDrawError
from simgpt.api.result import Cells, Result, Row, flat

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DAY_S = 86_400.0


class PlanRun(Result):
    """A training run from its start to its end. Times are in seconds."""

    @property
    def start(self) -> str:
        """The day on which the first job starts, as `2026-01-31`."""
        return str(self._record["start"])

    @property
    def end(self) -> str:
        """The day on which half of such runs are done."""
        return str(self._record["end"])

    @property
    def range(self) -> tuple[str, str]:
        """The days between which eight of ten such runs are done."""
        return str(self._record["low_end"]), str(self._record["high_end"])

    @property
    def days(self) -> float:
        """How long the median run takes."""
        return float(self._record["median_s"]) / DAY_S

    @property
    def effective_share(self) -> float:
        """Training that stays, as a share of the run's time."""
        return float(self._record["effective_share"])

    @property
    def interval_s(self) -> float:
        """Training between two checkpoints."""
        return float(self._record["interval"]["interval_s"])

    @property
    def checkpoint_bytes(self) -> int:
        """What a checkpoint holds: parameters and the optimizer's states."""
        of = self._record["checkpoint"]
        return int(of["parameter_bytes"]) + int(of["state_bytes"])

    def rows(self) -> list[Row]:
        """A row for each number of nodes that was compared, or one for the run."""
        compared = self._record["compared"]
        if compared:
            return [flat(row) for row in compared]
        kept = {key: each for key, each in self._record.items() if key != "calendar"}
        return [flat(kept)]

    def plot(self) -> Figure:
        """One life of the run: training that is in checkpoints over time, failures and jobs."""
        from validation.report.figures.style import drawing
        from validation.report.whole_run.calendar import calendar_of
        from validation.report.whole_run.calendar_figure import calendar

        found = calendar_of(self.to_dict(), "answer")
        if not found.progress:
            raise NothingToDrawError("this run has too many saves for one life of it to be drawn")
        with drawing():
            return calendar(found)

    def _short(self) -> str:
        record = self._record
        nodes = tables.several(record["nodes"], "node")
        low, high = self.range
        return f"{record['model']} on {nodes} of {record['machine']}: {self.end}, {low} to {high}"

    def _table(self) -> tuple[Sequence[str], Cells]:
        return [], [
            ("start", self.start),
            ("end", self.end),
            ("days", tables.amount(self.days)),
            ("effective training time", tables.percent(self.effective_share)),
            ("failures", f"{self._record['failures']:,.1f}"),
        ]
