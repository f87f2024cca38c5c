"""The table: every published figure of both papers beside its prediction, by one rule for plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Any

from simulator.predict import Prediction
from topologies.errors import SimgptError
from topologies.files.reading import shipped_toml
from topologies.records import record
from topologies.session import in_session
from validation.seeds.candidates import Candidates, SeedRuns, seed_runs
from validation.seeds.figures import OF_ONE, OF_TWO, Range, of_one, of_two
from validation.seeds.other_figures import groups, top_ten, traced

STEP_UNIT = "% of peak"


class SeedsError(SimgptError):
    """What was asked for is in neither paper."""


@record
class SeedRow:
    """A published figure beside ours, all in `unit`.

    `certainty` says how sure the published figure is ("read", "quoted", "derived", "memory"; "none"
    of a rung of the ladder of which nothing is published), `low` and `high` are None where nothing
    gives a range, `step` is the prediction of the candidate that the figure is of, where it is the
    figure of a step, `candidates` how many there are, and `breakdown_s` where the step goes: these
    parts, and no factor, explain a difference.
    """

    id: str
    published: float | None
    predicted: float
    low: float | None
    high: float | None
    unit: str
    certainty: str
    source: str
    candidates: int = 1
    breakdown_s: Mapping[str, float] = field(default_factory=dict)
    step: Prediction | None = None

    @property
    def within(self) -> bool | None:
        """Whether the published figure lies in the predicted range; None without one of both."""
        if self.published is None or self.low is None or self.high is None:
            return None
        return self.low <= self.published <= self.high

    @property
    def error(self) -> float | None:
        """Relative error of the predicted step where its share of the peak is published, which goes
        as one over the step."""
        known = self.unit == STEP_UNIT and self.published is not None
        return self.published / self.predicted - 1 if known and self.published else None

    def as_dict(self) -> dict[str, Any]:
        """The row as it stands in JSON; of a figure of a step with the plan that is predicted, and
        where that has a published share of the peak, with the step that follows from it."""
        keys = (each.name for each in fields(self) if each.name != "step")
        record = {key: getattr(self, key) for key in keys} | {"within": self.within}
        return record | {"breakdown_s": dict(self.breakdown_s)} | self._of_step()

    def _of_step(self) -> dict[str, Any]:
        if self.step is None:
            return {}
        found = {
            "model": self.step.gpt.name,
            "machine": self.step.machine,
            "devices": self.step.devices,
            "batch": self.step.plan.batch,
            "plan_string": str(self.step.plan),
            "stack": self.step.stack.name,
        }
        if self.error is None or self.published is None:
            return found
        measured_s = self.step.step_s * self.predicted / self.published
        return found | {
            "predicted_s": self.step.step_s,
            "measured_s": measured_s,
            "error": self.error,
        }


@in_session
def validate_seeds(
    words: Sequence[str] = (), progress: Callable[[str], None] = lambda _: None
) -> list[SeedRow]:
    """The rows of `validation/data/seeds.toml` with one of the words in their ids, predicted; all
    of them without words. A SeedsError where there is none."""
    runs = SeedRuns(progress)
    figures = shipped_toml("validation", "data/seeds.toml")["figure"]
    found = [
        each
        for figure in figures
        for row in figure["rows"]
        if not words or any(word in row["id"] for word in words)
        for each in _rows(figure["kind"], figure["unit"], row, runs)
    ]
    if not found:
        known = ", ".join(row["id"] for figure in figures for row in figure["rows"])
        raise SeedsError(f"no row has {' or '.join(words)} in its id; rows: {known}")
    return found


def _rows(kind: str, unit: str, row: Mapping[str, Any], runs: SeedRuns) -> Iterator[SeedRow]:
    if kind in OF_ONE or kind in OF_TWO:
        about = _row(row, unit, row["id"], row.get("published"), _range(kind, row, runs))
        yield _of_step(about, runs[row["run"]])
    elif kind == "top-ten":
        yield _row(row, unit, row["id"], row["published"], top_ten(row))
    else:
        for name, published, found, parts in groups() if kind == "groups" else traced(row):
            yield replace(_row(row, unit, name, published, found), breakdown_s=parts)


def _row(
    row: Mapping[str, Any], unit: str, name: str, published: float | None, found: Range
) -> SeedRow:
    return SeedRow(
        id=name,
        published=None if published is None else float(published),
        predicted=found.predicted,
        low=found.low,
        high=found.high,
        unit=unit,
        certainty=row["certainty"],
        source=row["source"],
    )


def _of_step(row: SeedRow, run: Candidates) -> SeedRow:
    """The row with the step that it is of."""
    return replace(
        row,
        candidates=len(run.predictions),
        breakdown_s=run.best.breakdown_s,
        step=run.best,
    )


def _range(kind: str, row: Mapping[str, Any], runs: SeedRuns) -> Range:
    if kind in OF_ONE:
        return of_one(kind, runs[row["run"]])
    paired = seed_runs()[row["base"]].of == row["run"]
    return of_two(kind, runs[row["run"]], runs[row["base"]], paired=paired)
