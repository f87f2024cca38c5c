"""Predictions in Python: of one step, of a sweep's points, of the plans that a search found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simgpt import tables
from simgpt.api.asking import Answered
from simgpt.api.errors import NothingToDrawError
from simgpt.api.result import Cells, Result, Row, flat, table_of
from simgpt.question import Question

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_BARS = 12
REASONS = 5  # for which points cannot run, that a notebook shows
ASKED = ("asked", "settings", "fields", "placement")  # of a record: what was asked
LEFT_OUT = (*ASKED, "plan", "breakdown_s", "range")  # of rows of many predictions


class Prediction(Result):
    """One training step, predicted. Times are in seconds, memory in bytes, rates in FLOP/s."""

    @property
    def model(self) -> str:
        """The name of the model."""
        return str(self._record["model"])

    @property
    def machine(self) -> str:
        """The name of the machine."""
        return str(self._record["machine"])

    @property
    def devices(self) -> int:
        """Devices that the plan uses."""
        return int(self._record["devices"])

    @property
    def plan(self) -> str:
        """The plan's text, with `data` filled in."""
        return str(self._record["plan_string"])

    @property
    def step_s(self) -> float:
        """How long the step takes."""
        return float(self._record["step_s"])

    @property
    def range_s(self) -> tuple[float, float]:
        """Between these lie eight of ten such steps, as far as published runs tell."""
        return float(self._record["low_step_s"]), float(self._record["high_step_s"])

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the whole job per second."""
        return float(self._record["tokens_per_s"])

    @property
    def mfu(self) -> float:
        """Model FLOP/s as a share of the peak; without recomputation."""
        return float(self._record["mfu"])

    @property
    def mfu_causal(self) -> float:
        """`mfu` without what a causal mask leaves out of attention."""
        return float(self._record["mfu_causal"])

    @property
    def hfu(self) -> float:
        """FLOP/s as a share of the peak; with recomputation."""
        return float(self._record["hfu"])

    @property
    def breakdown_s(self) -> dict[str, float]:
        """Where the step goes: compute, optimizer, idle, and exposed communication by axes."""
        return dict(self._record["breakdown_s"])

    @property
    def memory(self) -> dict[str, Any]:
        """`peak_bytes` and `capacity_bytes` of a device, parts of the peak, the `verdict` (fits,
        tight, does not fit), the probability `p_fits` behind it, and more."""
        return dict(self._record["memory"])

    @property
    def fits(self) -> bool:
        """Whether the run may fit into memory: its verdict is another than `does not fit`."""
        return bool(self._record["memory"]["fits"])

    @property
    def verdict(self) -> str:
        """`fits`, where 9 of 10 comparable runs would, `does not fit`, where 9 of 10 would not, or
        `tight`."""
        return str(self._record["memory"]["verdict"])

    @property
    def p_fits(self) -> float:
        """The probability that the run fits into memory, from peaks of comparable runs."""
        return float(self._record["memory"]["p_fits"])

    def plot(self) -> Figure:
        """A bar of what the step consists of."""
        return bars([self._record])

    def _short(self) -> str:
        where = f"{tables.several(self.devices, 'device')} of {self.machine}"
        return (
            f"{self.model} on {where}: {tables.seconds(self.step_s)} a step, "
            f"MFU {tables.percent(self.mfu)}, {self.verdict}"
        )

    def _table(self) -> tuple[Sequence[str], Cells]:
        low, high = self.range_s
        memory = self._record["memory"]
        facts = [
            ("plan", self.plan),
            ("80 % range", tables.between(low, high)),
            ("tokens/s", f"{self.tokens_per_s:,.0f}"),
            ("HFU", tables.percent(self.hfu)),
            ("peak memory per device", tables.gib(memory["peak_bytes"])),
            ("memory for tensors", tables.gib(memory["capacity_bytes"])),
        ]
        parts = sorted(self.breakdown_s.items(), key=lambda part: -part[1])
        facts += [
            (name, f"{tables.seconds(value)} ({tables.percent(value / self.step_s)})")
            for name, value in parts
            if value > 0
        ]
        return [], facts


class Sweep(Result):
    """The points of a study, those that can run first and the best of them foremost."""

    def __len__(self) -> int:
        return len(self._record["rows"])

    def rows(self) -> list[Row]:
        """A row for each point: what was asked, `status` and `reason`, and the prediction's values,
        which a point that cannot run has none of."""
        return [
            {**row["point"], "status": row["status"], "reason": row["reason"],
             **_figures(row["prediction"] or {}), **flat(row["scaling"] or {}, "scaling."),
             **flat(row["training"] or {}, "training.")}
            for row in self._record["rows"]
        ]  # fmt: skip

    def plot(self) -> Figure:
        """FLOP/s over the number of devices, where that is varied; else a bar for each of the best
        points."""
        from validation.report.answers import answers_in
        from validation.report.figures.lines import ladders_of, scaling_lines
        from validation.report.figures.scaling_figures import scaling
        from validation.report.figures.style import drawing

        lines = scaling_lines(ladders_of(answers_in(self.to_dict(), "sweep")))
        if not lines:
            return bars([row["prediction"] for row in self._record["rows"] if row["prediction"]])
        with drawing():
            return scaling(lines)

    def _short(self) -> str:
        record = self._record
        count = f"{tables.several(record['points'], 'point')}, {record['ok']:,} can run"
        return f"{record['title']}: {count}"

    def _table(self) -> tuple[Sequence[str], Cells]:
        varied = list(self._record["varied"])
        return _shown([(row["point"], row["prediction"]) for row in self._record["rows"]], varied)

    def _remarks(self) -> Sequence[str]:
        reasons = {row["reason"]: None for row in self._record["rows"] if row["reason"]}
        return tuple(reasons)[:REASONS]


class Search(Result):
    """The best plans that a search found, and what it knows of all others."""

    def __len__(self) -> int:
        return len(self._record["plans"])

    def __iter__(self) -> Iterator[Prediction]:
        """The predictions of the plans, the best first."""
        return (self._plan(record) for record in self._record["plans"])

    @property
    def best(self) -> Prediction | None:
        """The best plan's prediction; None where no plan fits."""
        return next(iter(self), None)

    @property
    def families(self) -> dict[str, Prediction]:
        """The best plan that was found of each family of plans, the best of all first."""
        records = [dict(record) for record in self._record.get("families", ())]
        names = [record.pop("family") for record in records]
        return dict(zip(names, map(self._plan, records), strict=True))

    @property
    def optimal(self) -> bool:
        """Whether no plan of the core space is better: false where the search was stopped early,
        and where no bounds are known."""
        return bool(self._record.get("optimal", False))

    @property
    def gap(self) -> float | None:
        """By which share of its own the best may miss the optimum; None where it is not known."""
        gap = self._record.get("gap")
        return None if gap is None else float(gap)

    @property
    def certificate(self) -> str:
        """What is known of the plans that were left out."""
        return str(self._record.get("certificate") or self._record.get("correlation", ""))

    def rows(self) -> list[Row]:
        """A row for each plan that was found."""
        return [_figures(record) for record in self._record["plans"]]

    def plot(self) -> Figure:
        """A bar for each of the plans that were found."""
        return bars(self._record["plans"])

    def _plan(self, record: Mapping[str, Any]) -> Prediction:
        whole = {**record, **{key: self._record[key] for key in ASKED}}
        question = Question.from_json(whole)
        whole["asked"] = {**whole["asked"], "command": question.command}
        text = f"{record['plan_string']}: {tables.seconds(record['step_s'])} a step"
        words = ("simgpt", "predict", *question.as_words())
        return Prediction(Answered(words, text, whole, (), (), 0, question))

    def _short(self) -> str:
        record, best = self._record, self.best
        where = f"{tables.several(record['devices'], 'device')} of {record['machine']}"
        found = "no plan" if best is None else f"{tables.seconds(best.step_s)} with {best.plan}"
        return f"{record['model']} on {where}: {found}"

    def _table(self) -> tuple[Sequence[str], Cells]:
        plans = self._record["plans"]
        return _shown([({"plan": plan["plan_string"]}, plan) for plan in plans], ["plan"])

    def _remarks(self) -> Sequence[str]:
        return (self.certificate,)


def _shown(
    rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]], keys: Sequence[str]
) -> tuple[Sequence[str], Cells]:
    """Columns and cells of points with their predictions: some keys of the points, and figures as
    people read them; none of a point that cannot run."""
    every = [
        {key: point.get(key) for key in keys}
        | {
            "step": said and tables.seconds(said["step_s"]),
            "MFU": said and tables.percent(said["mfu"]),
            "memory": said and tables.gib(said["memory"]["peak_bytes"]),
        }
        for point, said in rows
    ]
    return table_of(every, [*keys, "step", "MFU", "memory"])


def _figures(prediction: Mapping[str, Any]) -> Row:
    """The values of a prediction among others, without what all of them share."""
    row = flat({key: value for key, value in prediction.items() if key not in LEFT_OUT})
    return row | flat(prediction.get("breakdown_s", {}), "breakdown_s.")


def bars(records: Sequence[Mapping[str, Any]]) -> Figure:
    """A bar of what a step consists of for each of the first predictions."""
    from validation.report.figures.bars import breakdown
    from validation.report.figures.style import drawing
    from validation.report.read_prediction import prediction_of

    if not records:
        raise NothingToDrawError("no plan can run, so there is nothing to draw")
    with drawing():
        return breakdown([prediction_of(record, "answer") for record in records[:MOST_BARS]])
