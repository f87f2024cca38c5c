"""Published figures of whole training runs beside those that the model of a run gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from simulator.goodput.checkpoint import Checkpoint, checkpoint_of
from simulator.goodput.closed_form import best_interval_s, effective_share, lost_s
from simulator.goodput.job import DAY_S, HOUR_S, Run
from topologies.files.reading import shipped_toml
from topologies.hardware.reliability import NODE_DAYS
from topologies.records import record
from workload.gpt import find_model
from workload.plan_text import parse_plan

LONG_S = 1000 * DAY_S  # of training, in which the first and the last save do not count
GOAL = 0.03  # of what is published, or points of a share


@record
class Input:
    """An input's value and where it is from."""

    value: Any
    origin: str


@record
class GoodputRow:
    """A published figure beside ours, both in `unit`; `open` says why no error is counted, where
    assumptions decide the prediction."""

    id: str
    kind: str
    unit: str
    published: float
    predicted: float
    at_least: bool
    source: str
    certainty: str
    given: Mapping[str, Input]
    assumed: Mapping[str, Input]
    note: str = ""
    open: str = ""

    @property
    def difference(self) -> float:
        """Predicted less published: of shares in points over a hundred, else relative; nothing
        where the published figure is a bound that the prediction keeps."""
        if self.at_least and self.predicted >= self.published:
            return 0.0
        away = self.predicted - self.published
        return away / 100 if self.unit == "%" else away / self.published

    @property
    def is_counted(self) -> bool:
        """Whether the source's inputs suffice for a prediction."""
        return not self.open

    def as_dict(self) -> dict[str, Any]:
        """The row as it stands in JSON."""
        inputs = {
            name: {key: {"value": each.value, "from": each.origin} for key, each in of.items()}
            for name, of in (("given", self.given), ("assumed", self.assumed))
        }
        return {
            "id": self.id,
            "kind": self.kind,
            "unit": self.unit,
            "published": self.published,
            "at_least": self.at_least,
            "predicted": self.predicted,
            "difference": self.difference if self.is_counted else None,
            "counted": self.is_counted,
            "open": self.open or None,
            "note": self.note or None,
            "certainty": self.certainty,
            "source": self.source,
            **inputs,
        }


def validate_goodput() -> list[GoodputRow]:
    """The rows of `validation/data/goodput.toml`, predicted."""
    document = shipped_toml("validation", "data/goodput.toml")
    return [_row(row, document["sources"]) for row in document["row"]]


def _row(row: Mapping[str, Any], sources: Mapping[str, str]) -> GoodputRow:
    given, assumed = _inputs(row.get("given", {})), _inputs(row.get("assumed", {}))
    values = {name: each.value for name, each in (given | assumed).items()}
    return GoodputRow(
        id=row["id"],
        kind=row["kind"],
        unit=row["unit"],
        published=float(row["published"]),
        predicted=PREDICTED[row["kind"]](values),
        at_least=row.get("at_least", False),
        source=sources[row["source"]],
        certainty=row["certainty"],
        given=given,
        assumed=assumed,
        note=row.get("note", ""),
        open=row.get("open", ""),
    )


def _inputs(table: Mapping[str, Mapping[str, Any]]) -> dict[str, Input]:
    return {name: Input(each["value"], each["from"]) for name, each in table.items()}


def _failures_per_s(values: Mapping[str, Any]) -> float:
    """The rate of the whole job: of its nodes, or counted over days."""
    if "nodes" in values:
        rate = values["nodes"] * values["failures_per_1000_node_days"] / NODE_DAYS
    else:
        rate = values["failures"] / values["days"]
    return float(rate) / DAY_S


def _run(values: Mapping[str, Any]) -> Run:
    """A long run with these inputs; times that the row does not name are none."""
    interval_s = values.get("interval_s", HOUR_S)
    write_s, stall_s = (float(values.get(name, 0.0)) for name in ("write_s", "stall_s"))
    if "stall_share" in values:
        write_s, stall_s = float(interval_s), interval_s * values["stall_share"]
    best = interval_s == "best"
    run = Run(
        work_s=LONG_S,
        interval_s=HOUR_S if best else float(interval_s),
        write_s=write_s,
        stall_s=stall_s,
        failures_per_s=_failures_per_s(values),
        detection_s=float(values.get("detection_s", 0.0)),
        restart_s=float(values.get("restart_s", 0.0)),
    )
    return replace(run, interval_s=best_interval_s(run, 1.0)) if best else run


def _effective(values: Mapping[str, Any]) -> float:
    """In %; with `lost_s` in place of an interval, what a failure costs is known in all."""
    if "lost_s" not in values:
        return 100 * effective_share(_run(values))
    each_s = values["lost_s"] + values["detection_s"]
    return 100 * (1 - _failures_per_s(values) * float(each_s))


def _checkpoint(values: Mapping[str, Any]) -> Checkpoint:
    plan = parse_plan(values["plan"], devices=None, batch=2048)
    return checkpoint_of(find_model(values["model"]), plan)


PREDICTED: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "effective": _effective,
    "failures": lambda values: 1 / _failures_per_s(values) / HOUR_S,
    "lost": lambda values: lost_s(_run(values)) / HOUR_S,
    "checkpoint": lambda values: _checkpoint(values).total_bytes / 2**40,
    "weights": lambda values: _checkpoint(values).parameter_bytes / 2**30,
}
