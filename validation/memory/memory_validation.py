"""Predicted peaks of memory beside measured ones, row by row, and the verdicts that follow."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simulator.uncertainty.fitting import Kind, kind_of
from topologies.errors import SimgptError
from topologies.records import record
from topologies.session import Session
from validation.memory.memory_questions import Answer, answer, questions

MARGINS = (0.02, 0.05, 0.10, 0.20)


@record(slots=False)
class MemoryRow:
    """A run's peak on one device, predicted and measured.

    `measure` says of what: "allocated", "reserved" or "device" (`memory_questions.py`). `unused` is
    what the caching allocator reserves beyond what it gives out, as a share of the latter.
    `question` is equal for runs that are predicted alike. `need` is the logarithm of what the run
    needed over its predicted peak (`Answer.need`), `kind` that of its job.
    """

    id: str
    source: str
    plan: str
    question: str
    measure: str
    predicted_bytes: int
    measured_bytes: int
    unused: float
    kind: Kind
    need: float = 0.0

    @property
    def experts(self) -> bool:
        """Whether the model has experts."""
        return self.kind.experts

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_bytes / self.measured_bytes - 1

    def as_dict(self) -> dict[str, Any]:
        """The row as it stands in JSON."""
        return {
            "id": self.id,
            "source": self.source,
            "plan_string": self.plan,
            "predicted_peak_bytes": self.predicted_bytes,
            "measured_peak_bytes": self.measured_bytes,
            "error": self.error,
            "measure": self.measure,
            "allocator_unused": self.unused,
        }


@record(slots=False)
class MemoryValidation:
    """All rows, and how many others were refused for which reason."""

    rows: tuple[MemoryRow, ...]
    refused: dict[str, int]

    @property
    def mape(self) -> float:
        """Mean absolute error of the rows."""
        return mape(self.rows)

    @property
    def sources(self) -> dict[str, list[MemoryRow]]:
        """Rows by source, in the order of the files."""
        found: dict[str, list[MemoryRow]] = {}
        for row in self.rows:
            found.setdefault(row.source, []).append(row)
        return found

    @property
    def questions(self) -> list[MemoryRow]:
        """One row for each different question, the one with the median error."""
        alike: dict[str, list[MemoryRow]] = {}
        for row in self.rows:
            alike.setdefault(row.question, []).append(row)
        return [sorted(rows, key=lambda row: row.error)[len(rows) // 2] for rows in alike.values()]

    @property
    def with_experts(self) -> MemoryValidation:
        """The rows of models with experts alone."""
        return MemoryValidation(tuple(row for row in self.rows if row.experts), {})

    def wrong(self, margin: float) -> float:
        """The share of verdicts that are wrong on devices whose memory for tensors is by the margin
        more, and by the margin less, than each run took."""
        ours = [row.error > margin for row in self.rows]
        ours += [row.error <= -margin for row in self.rows]
        return sum(ours) / len(ours) if ours else 0.0

    @property
    def wrong_by_margin(self) -> dict[str, float]:
        """The share of wrong verdicts for each of `MARGINS`."""
        return {f"{margin:g}": self.wrong(margin) for margin in MARGINS}

    @property
    def unused(self) -> tuple[float, float]:
        """What the allocator reserves beyond what it gives out: median and 9 of 10 questions."""
        shares = sorted(row.unused for row in self.questions)
        return statistics.median(shares), shares[(len(shares) - 1) * 9 // 10]

    def as_dict(self) -> dict[str, Any]:
        """The comparison as it stands in JSON."""
        median, most = self.unused if self.rows else (0.0, 0.0)
        return {
            "rows": [row.as_dict() for row in self.rows],
            "mape": self.mape,
            "mape_of_questions": mape(self.questions),
            "sources": {
                name: {"rows": len(rows), "mape": mape(rows), "bias": bias(rows)}
                for name, rows in self.sources.items()
            },
            "wrong_verdicts": self.wrong_by_margin,
            "wrong_verdicts_of_experts": self.with_experts.wrong_by_margin,
            "allocator_unused": {"median": median, "nine_of_ten": most},
            "refused": dict(self.refused),
        }


def mape(rows: Sequence[MemoryRow]) -> float:
    """The mean absolute error of rows; 0 of none."""
    return statistics.fmean(abs(row.error) for row in rows) if rows else 0.0


def bias(rows: Sequence[MemoryRow]) -> float:
    """The mean error of rows; 0 of none."""
    return statistics.fmean(row.error for row in rows) if rows else 0.0


def validate_memory(
    path: Path | None = None, progress: Callable[[str], None] = lambda _: None
) -> MemoryValidation:
    """Predict the peak of every run of a file; without one, of Megatron-LM's tests and of the
    published runs that say theirs.

    A SimgptError where the file has neither's columns.
    """
    rows: list[MemoryRow] = []
    refused: Counter[str] = Counter()
    known: dict[str, Answer] = {}
    with Session():
        for run in questions(path):
            try:
                asked = run.ask()
                key = asked.signature
                if key not in known:
                    progress(f"{len(known)} plans predicted")
                    known[key] = answer(asked)
            except SimgptError as error:
                refused[str(error)] += 1
                continue
            found = known[key]
            rows.append(
                MemoryRow(
                    id=run.id,
                    source=run.source,
                    plan=str(asked.job.plan),
                    question=key,
                    measure=run.measure,
                    predicted_bytes=found.of(run.measure, run.more_bytes),
                    measured_bytes=run.measured_bytes,
                    unused=found.unused,
                    kind=kind_of(asked.job.stack, experts=bool(asked.job.gpt.moe.experts)),
                    need=found.need(run.measure, run.measured_bytes, run.more_bytes),
                )
            )
    return MemoryValidation(tuple(rows), dict(refused))
