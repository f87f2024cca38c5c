"""The answer of `simgpt plan-run` as a person reads it, and as it stands in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from simgpt import tables
from simgpt.arguments.durations import duration_text
from simgpt.calendars.planned import Planned
from simgpt.calendars.run_options import DATE
from simgpt.commands.prediction_text import plan_line
from simulator.goodput.closed_form import daly_interval_s, young_interval_s
from simulator.goodput.draws import Diary
from simulator.goodput.forecast import HIGH, LOW, MIDDLE
from simulator.goodput.job import DAY_S

LABELS = 34  # characters of the tables' first column
SHARES = {
    "training": "training that stays",
    "lost": "training that was lost",
    "saving": "saves",
    "detection": "failures before they are noticed",
    "restart": "restarts",
    "waiting": "waiting for repairs",
    "queue": "waiting in the queue",
}
MOST_POINTS = 400  # of a calendar's curve
MOST_EVENTS = 2_000


def date_of(start: datetime, seconds: float) -> str:
    """The day on which so many seconds from the start are over."""
    days = seconds / DAY_S
    try:
        return (start + timedelta(days=days)).strftime(DATE)
    except OverflowError:
        return f"in {days / 365.25:,.0f} years"


def describe(planned: Planned, start: datetime, compared: Sequence[Mapping[str, Any]]) -> str:
    """The whole answer."""
    found = planned.forecast
    shares = [
        (SHARES[name], duration_text(share * found.lives.total_s.mean()), tables.percent(share))
        for name, share in sorted(found.lives.shares.items(), key=lambda item: -item[1])
        if share >= 0.00005
    ]
    columns = ["where the time goes, mean of draws", "time", "share"]
    return "\n\n".join(
        [
            _head(planned),
            tables.table([], _ends(planned, start), left=2, first=LABELS),
            tables.table(["checkpoints", ""], _checkpoints(planned), left=2, first=LABELS),
            tables.table(columns, shares, first=LABELS),
            *([_comparison(compared)] if compared else []),
            "\n".join(tables.paragraph(each, indent="     ") for each in _said(planned)),
        ]
    )


def _said(planned: Planned) -> tuple[str, ...]:
    """What is assumed of the run, and where the range of its steps comes from."""
    return *planned.assumed, f"80 % range: {planned.prediction.range.words}"


def _head(planned: Planned) -> str:
    prediction, within = planned.prediction, planned.prediction.range
    where = f"{tables.several(prediction.devices, 'device')} of {prediction.machine}"
    span = tables.between(within.low_s, within.high_s)
    return "\n".join(
        [
            f"{prediction.gpt.name} on {where}, {tables.several(planned.nodes, 'node')}",
            plan_line(prediction),
            f"{tables.several(planned.steps, 'step')} of {tables.seconds(planned.step_s)} "
            f"(80 % range {span}), {prediction.tokens_per_step:,} tokens each",
            *([] if prediction.memory.is_sure else [f"memory: {prediction.memory.words}"]),
        ]
    )


def _ends(planned: Planned, start: datetime) -> list[tuple[str, str]]:
    found = planned.forecast
    low, middle, high = (found.percentile_s(each) for each in (LOW, MIDDLE, HIGH))
    shares = [tables.percent(found.effective(each)) for each in (LOW, HIGH)]
    rate = found.run.failures_per_s
    failures = f"{found.lives.failures.mean():,.1f}"
    if rate:
        failures += f", one in {duration_text(1 / rate)}"
    return [
        ("start", start.strftime(DATE)),
        ("end", date_of(start, middle)),
        ("80 % range of the end", f"{date_of(start, low)} to {date_of(start, high)}"),
        ("run", f"{duration_text(middle)}, {duration_text(low)} to {duration_text(high)}"),
        ("run, mean of draws", duration_text(found.lives.total_s.mean())),
        ("training without a break", duration_text(found.run.work_s)),
        ("expected run, by formulas", duration_text(found.expected_s)),
        ("effective training time", tables.percent(found.lives.shares["training"])),
        ("80 % range of that", f"{shares[0]} to {shares[1]}"),
        ("failures, mean of draws", failures),
        ("node-hours, the median run", tables.hours(middle * planned.nodes)),
    ]


def _checkpoints(planned: Planned) -> list[tuple[str, str]]:
    run, saves, bytes_of = planned.forecast.run, planned.saves, planned.checkpoint
    every = tables.several(planned.interval_steps, "step")
    rows = [
        ("parameters", tables.gib(bytes_of.parameter_bytes)),
        ("optimizer", tables.gib(bytes_of.state_bytes)),
        ("a save", f"{duration_text(saves.write_s)}, bounded by {saves.limit}"),
        ("training stalls for it", duration_text(saves.stall_s)),
        ("a restart, with the reading", duration_text(run.restart_s)),
        ("training between saves", f"{duration_text(run.interval_s)}, {every}"),
        ("best, by formulas", duration_text(planned.forecast.best_interval_s)),
    ]
    if run.failures_per_s:
        rows += [
            ("by Young", duration_text(young_interval_s(run))),
            ("by Daly", duration_text(daly_interval_s(run))),
        ]
    return rows


def _comparison(compared: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            f"{row['nodes']:,}",
            row["end"] or "-",
            f"{row['low_end']} to {row['high_end']}" if row["end"] else row["reason"],
            tables.percent(row["effective_share"]) if row["end"] else "-",
            tables.hours(row["node_s"]) if row["end"] else "-",
        )
        for row in compared
    ]
    columns = ["nodes", "end", "80 % range", "effective", "node-hours"]
    return tables.table(columns, rows, left=3)


def ends_of(planned: Planned, start: datetime) -> dict[str, Any]:
    """The dates of the end, in the middle and on both sides, and what the run takes and keeps."""
    found = planned.forecast
    ends = {
        f"{name}end": date_of(start, found.percentile_s(percent))
        for name, percent in (("", MIDDLE), ("low_", LOW), ("high_", HIGH))
    }
    return ends | {
        "median_s": found.percentile_s(MIDDLE),
        "effective_share": found.lives.shares["training"],
        "node_s": found.percentile_s(MIDDLE) * planned.nodes,
    }


def record_of(planned: Planned, start: datetime) -> dict[str, Any]:
    """The answer as it stands in JSON."""
    prediction, found = planned.prediction, planned.forecast
    run, saves, bytes_of = found.run, planned.saves, planned.checkpoint
    return {
        "model": prediction.gpt.name,
        "machine": prediction.machine,
        "devices": prediction.devices,
        "nodes": planned.nodes,
        "plan_string": prediction.plan_text,
        "stack": prediction.stack.name,
        "steps": planned.steps,
        "mean_step_s": planned.step_s,
        **prediction.range.as_dict(),
        "run_to_run": planned.band and planned.band.as_dict(planned.step_s),
        "fits": prediction.memory.fits,
        "verdict": prediction.memory.verdict,
        "p_fits": prediction.memory.p_fits,
        "start": start.strftime(DATE),
        **found.as_dict(),
        **ends_of(planned, start),
        "node_failures_per_s": planned.node_failures_per_s,
        "interval_steps": planned.interval_steps,
        "checkpoint": {
            "parameter_bytes": bytes_of.parameter_bytes,
            "state_bytes": bytes_of.state_bytes,
            "held_bytes": bytes_of.held_bytes,
            "write_s": saves.write_s,
            "stall_s": saves.stall_s,
            "read_s": saves.read_s,
            "limit": saves.limit,
        },
        "detection_s": run.detection_s,
        "restart_s": run.restart_s,
        "calendar": calendar_of(found.diary(), run.work_s),
        "assumed": list(planned.assumed),
    }


def calendar_of(diary: Diary | None, work_s: float) -> dict[str, Any] | None:
    """One life of the run for a report: durable training over time, thinned to `MOST_POINTS`,
    failures and jobs, in seconds from the start."""
    if diary is None:
        return None
    whole = diary.saves[-1][1] if diary.saves else work_s
    points = [(0.0, 0.0), *((at, kept / whole) for at, kept in diary.saves)]
    stride = -(-len(points) // MOST_POINTS)
    thinned = [*points[:-1:stride], points[-1]]
    return {
        "total_s": float(diary.total_s),
        "saves": len(diary.saves),
        "progress": [[float(at), float(share)] for at, share in thinned],
        "failures": len(diary.failures),
        "failures_s": [float(at) for at in diary.failures[:MOST_EVENTS]],
        "jobs_s": [[float(a), float(b)] for a, b in diary.jobs[:MOST_EVENTS]],
    }
