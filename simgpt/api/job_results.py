"""Jobs in Python: measured ones, those of other frameworks, scripts, and runs on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simgpt import tables
from simgpt.api.errors import NoAnswerError
from simgpt.api.result import Cells, Result, Row, cell_of, flat
from simgpt.question import Question


class Comparison(Result):
    """A measured job beside its prediction."""

    @property
    def question(self) -> Question:
        """The question of the predicted step, with what the job's log says of it."""
        return Question.from_json(self.to_dict())

    @property
    def measured_s(self) -> float:
        """The median of the measured steps."""
        return float(self._record["measured"]["median_s"])

    @property
    def predicted_s(self) -> float:
        """The predicted step."""
        return float(self._record["predicted"]["step_s"])

    @property
    def error(self) -> float:
        """The prediction over the measurement, less one."""
        return self.predicted_s / self.measured_s - 1

    def _short(self) -> str:
        both = f"measured {tables.seconds(self.measured_s)}"
        both += f", predicted {tables.seconds(self.predicted_s)}"
        return f"{both} ({tables.percent(self.error, sign=True)})"


class Import(Result):
    """A job of another framework, as its files say it, and what of them is not carried over."""

    @property
    def question(self) -> Question:
        """The question that predicts it, with the machine where one was given; a NoAnswerError
        where the files do not say enough."""
        if self._record["question"] is None or self._record["model"] is None:
            raise NoAnswerError("the files do not describe a step that simgpt predicts")
        return Question.from_json(self.to_dict())

    def rows(self) -> list[Row]:
        """A row for each setting that is ignored or refused, with its reason."""
        return [
            {"status": status, **each}
            for status in ("changes", "refused")
            for each in self._record[status]
        ]

    def _short(self) -> str:
        return f"{' and '.join(self._record['framework'])}: {self._record['predict']}"

    def _table(self) -> tuple[Sequence[str], Cells]:
        names = ("model", "plan", "batch", "stack", "devices")
        return [], [(name, cell_of(self._record[name])) for name in names]


class Export(Result):
    """Settings by which another framework runs a plan; `str()` of it is their file."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by their names."""
        return dict(self._record["settings"])

    def rows(self) -> list[Row]:
        """A row for each setting."""
        return [{"setting": key, "value": each} for key, each in self.settings.items()]

    def _short(self) -> str:
        count = tables.several(len(self.settings), "setting")
        return f"{count} of {self._record['framework']} for {self._record['devices']:,} devices"


class JobScript(Result):
    """A job script for Slurm; `str()` of it is the script."""

    @property
    def nodes(self) -> int:
        """How many nodes it asks for."""
        return int(self._record["nodes"])

    @property
    def limit_s(self) -> float:
        """Its time limit."""
        return float(self._record["limit_s"])

    def rows(self) -> list[Row]:
        """One row, without the script and the prediction."""
        return [flat({k: v for k, v in self._record.items() if k not in ("script", "predicted")})]

    def _short(self) -> str:
        nodes = tables.several(self.nodes, "node")
        return f"job script for {nodes} of {self._record['site']}, {tables.seconds(self.limit_s)}"


class Run(Result):
    """A training run on this machine, its steps beside their prediction."""

    def rows(self) -> list[Row]:
        """A row for each step; of a run without steps one row."""
        steps: Sequence[Mapping[str, Any]] = self._record.get("steps") or ()
        return [flat(step) for step in steps] or super().rows()

    def _short(self) -> str:
        record = self._record
        if "step_s" not in record:
            return str(record.get("model", self.command))
        predicted = record["predicted_step_s"]
        beside = "" if predicted is None else f", predicted {tables.seconds(predicted)}"
        return f"{record['model']}: {tables.seconds(record['step_s'])} a step{beside}"


class Calibration(Result):
    """This machine as it was measured; `machine` is its file."""

    @property
    def machine(self) -> str:
        """The file, for `machine=` of the other functions."""
        return str(self._record["machine"])
