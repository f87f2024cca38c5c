"""Why a predicted step takes as long as it does, in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from simgpt import tables
from simgpt.api.errors import ArgumentError, NothingToDrawError
from simgpt.api.predictions import Prediction
from simgpt.api.result import Cells, Row, flat, frame_of
from topologies.files.printable import shown

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

PLANS = 8  # rows that a notebook shows of each part
WhyPart = Literal["path", "sensitivity", "better_machines", "neighbouring_plans", "roofline"]
PARTS = get_args(WhyPart)


class Why(Prediction):
    """What a predicted step waits for, what it is sensitive to, and what would make it faster."""

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        return str(self._record["why"]["sentence"])

    def rows(self, part: WhyPart = "neighbouring_plans") -> list[Row]:
        """The rows of a part of the answer: of the critical path, the sensitivities to numbers of
        the machine, machines that are twice as good in one respect, the plans next to this, or the
        kinds of ops of the roofline and, last, the whole step; a NothingToDrawError where no
        roofline was asked for."""
        if part == "roofline":
            found = self._roofline()
            return [flat(row) for row in (*found["kinds"], found["step"])]
        if part not in PARTS:
            raise ArgumentError(f"why has no part {shown(part)}; it has {', '.join(PARTS)}")
        return [flat(row) for row in self._record["why"][part]]

    def to_frame(self, part: WhyPart = "neighbouring_plans") -> pandas.DataFrame:
        """The rows of a part as a data frame of pandas."""
        return frame_of(self.rows(part))

    def plot(self, part: Literal["sensitivity", "roofline"] = "sensitivity") -> Figure:
        """The sensitivities to numbers of the machine, the largest first, or the roofline; a
        NothingToDrawError where none was asked for."""
        from validation.report.figures.roofline import roofline
        from validation.report.figures.step_figures import tornado
        from validation.report.figures.style import drawing

        if part == "roofline":
            self._roofline()
            with drawing():
                return roofline(self._record)
        with drawing():
            return tornado(self._record["why"]["sensitivity"])

    def _roofline(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] | None = self._record["why"].get("roofline")
        if found is None:
            raise NothingToDrawError(
                'this answer has no roofline; ask for one with why(..., roofline="roofline.png")'
            )
        return found

    def _table(self) -> tuple[Sequence[str], Cells]:
        rows = [
            (row["change"], tables.seconds(row["step_s"]), tables.percent(row["saving"]))
            for part in ("better_machines", "neighbouring_plans")
            for row in self._record["why"][part][:PLANS]
        ]
        return ["with", "step", "saves"], rows

    def _remarks(self) -> Sequence[str]:
        return (self.sentence,)
