"""A study's rows as a person reads them: the best first, then what cannot run and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from simgpt import tables
from simgpt.question import BEST
from simgpt.studies.evaluate import Row
from simgpt.studies.study import Study
from simulator.answer_words import EVENLY, mfu_words
from simulator.uncertainty.difference import DifferenceError
from simulator.uncertainty.fitting import DOES_NOT_FIT, FITS, TIGHT
from topologies.files.units import J_PER_MWH, format_energy
from validation.report.findings import MEASURES
from workload.plan import text_of

NOT_EXPOSED = ("compute", "optimizer", "idle")
LEAST = ("energy", "tokens/s", "memory", "MFU")  # what a table can do without, first to last
NOT_IMPLIED = ("memory", "MFU")  # by any other column
BY_SPEED = ("throughput", "time")
BATCH = ("batch", "batch_tokens", "plan")
WORST = math.inf
Figure = tuple[str, Callable[[Row], str]]


def _prediction(*keys: str) -> Callable[[Row], float]:
    """What a row's prediction has under some keys; the worst of all where it has nothing."""

    def found(row: Row) -> float:
        part: Any = row["prediction"]
        for key in keys:
            part = part[key]
        return WORST if part is None else float(part)

    return found


def _throughput(row: Row) -> float:
    return -float(row["prediction"]["model_flops_per_s_per_device"])


ORDERS: dict[str, Callable[[Row], float]] = {
    "throughput": _throughput,
    "time": _prediction("step_s"),
    "node-hours": _prediction("cost", "node_s_per_step"),
    "energy": _prediction("cost", "energy_j_per_step"),
    "memory": _prediction("memory", "peak_bytes"),
    "study": lambda row: float(row["id"]),
}


def ranked(rows: Iterable[Row], order: str) -> list[Row]:
    """The rows that can run, the best first; then the others in the study's order."""
    every = list(rows)
    good = [row for row in every if row["status"] == "ok"]
    return sorted(good, key=ORDERS[order]) + [row for row in every if row["status"] != "ok"]


def _is_shown(row: Row) -> bool:
    """Whether there is a prediction to show: of a plan that fits, or that lacks memory alone."""
    return row["status"] == "ok" or (row["status"] == "infeasible" and bool(row["prediction"]))


def describe(study: Study, rows: Sequence[Row], limit: int, order: str) -> str:
    """The study, a table of its best rows in that order and then of those that do not fit, and one
    of those that cannot run at all."""
    good = [row for row in rows if row["status"] == "ok"]
    figured = [row for row in rows if _is_shown(row)]
    bad = [row for row in rows if not _is_shown(row)]
    parts = [_headline(study)]
    if any(row["prediction"].get("routing_assumed") for row in figured):
        parts[0] += f"\n  {EVENLY}"
    if chosen := _chosen(figured):
        parts[0] += f"\n  {chosen}"
    if figured:
        parts.append(_good(study, figured[:limit]))
    if bad:
        parts.append(_bad(study, bad[:limit]))
    left = len(rows) - len(figured[:limit]) - len(bad[:limit])
    cannot = len(rows) - len(good)
    counts = f"{tables.several(len(rows), 'point')}: {len(good):,} can run, {cannot:,} cannot"
    more = f"; {left:,} more rows are not shown; --json has all" if left else ""
    last = "" if len(good) == len(figured) else "; plans that do not fit come last"
    best = f"\nbest first: {MEASURES[order]}{last}" if order in MEASURES and len(good) > 1 else ""
    peaks = mfu_words(row["prediction"] for row in figured)
    tail = [counts + more + best, *peaks, *_anchored(figured), *_decided(good, order)]
    return "\n\n".join([*parts, *tail])


def _chosen(rows: Sequence[Row]) -> str:
    """Which stacks points have that name none; nothing where all of them name one."""
    unnamed = [row for row in rows if "stack" not in row["point"]]
    names = dict.fromkeys(map(_stack, unnamed))
    return f"stack, where none is named: {', '.join(names)} (docs/stacks.md)" if names else ""


def _stack(row: Row) -> str:
    return str(row["prediction"].get("stack", ""))


def _anchored(rows: Sequence[Row]) -> list[str]:
    """How far anchors moved the steps of the rows shown, and which of them moved none."""
    known = [row["prediction"]["anchor"] for row in rows if row["prediction"].get("anchor")]
    if not known:
        return []
    moved = [each for each in known if each["used"]]
    names = dict.fromkeys(used["anchor"] for each in moved for used in each["used"])
    none = {
        name: why for each in known for name, why in each["unused"].items() if name not in names
    }
    lines = [f"not anchored to {name}: {why}" for name, why in none.items()]
    if moved:
        factors = [each["factor"] for each in moved]
        span = " to ".join(dict.fromkeys(f"{f(factors):.3f}" for f in (min, max)))
        doublings = [each["used"][0]["doublings"] for each in moved]
        far = " to ".join(dict.fromkeys(f"{f(doublings):.1f}" for f in (min, max)))
        rest = len(known) - len(moved)
        but = f", but for {tables.several(rest, 'row')}" if rest else ""
        lines.insert(
            0,
            f"anchored: steps times {span}{but}, from {', '.join(names)}; the nearest {far} "
            "doublings away",
        )
    return [tables.paragraph(line) for line in lines]


def undecided(rows: Sequence[Row], order: str) -> tuple[float | None, list[int]]:
    """The error of a difference between two plans, as a share, and the numbers of the rows that
    differ from the first, the best, by less than that, itself included.

    Rows can be compared that can run, in an order by speed, and that differ in the plan and the
    batch alone; where there are none, the error is None. The time of a token counts.
    """
    good = [row for row in rows if row["status"] == "ok"] if order in BY_SPEED else []
    alike = [row for row in good if _beside_plan(row) == _beside_plan(good[0])]
    if len(alike) < 2:
        return None, []
    error = float(good[0]["prediction"]["difference_error"])
    tokens_s = [1 / float(row["prediction"]["tokens_per_s"]) for row in alike]
    found = DifferenceError(error, 0, 0).undecided(tokens_s)
    return error, [int(alike[at]["id"]) for at in found]


def _beside_plan(row: Row) -> tuple[Any, ...]:
    """What tells a row from others besides its plan and its batch."""
    point = row["point"]
    rest = {k: repr(v) for k, v in point.items() if k not in BATCH and k.split(".")[0] != "plan"}
    said = row["prediction"]
    return said["devices"], said["device"], _stack(row), sorted(rest.items())


def _decided(good: Sequence[Row], order: str) -> list[str]:
    """What is said of points that a prediction cannot tell apart."""
    error, rows = undecided(good, order)
    if error is None:
        return []
    words = tables.percent(error)
    if not rows:
        return [f"the best point leads by more than simgpt's error between two plans ({words})"]
    which = ", ".join(map(str, rows))
    said = f"points {which} are closer than simgpt can tell apart ({words}): benchmark them"
    return [tables.paragraph(said)]


def _headline(study: Study) -> str:
    varied = study.varied
    first = next(study.points())
    fixed = ", ".join(_fixed(key, first[key]) for key in first if key not in varied)
    return "\n".join([study.title, *([tables.paragraph(fixed, indent="  ")] if fixed else [])])


def _fixed(key: str, value: Any) -> str:
    return f"{_short(key)} {_value(key, value)}"


def _value(key: str, value: Any) -> str:
    return tables.count(int(value)).replace(" ", "") if key == "tokens" else _shown(value)


def _good(study: Study, rows: Sequence[Row]) -> str:
    """The rows that are predicted, with the energy where some of them have one; where they are too
    wide, figures are left out, which is said of those that no others imply."""
    figures = _figures(study, any(row.get("published") for row in rows))
    if any(_verdict(row) != FITS for row in rows):
        at = 1 + next(n for n, (name, _) in enumerate(figures) if name == "memory")
        figures.insert(at, ("fits", _fits))
    if "stack" not in study.varied and len({*map(_stack, rows)}) > 1:
        figures.insert(0, ("stack", _stack))
    if all(_energy(row) == "-" for row in rows):
        figures = [figure for figure in figures if figure[0] != "energy"]
    shown, missed = _good_with(study, rows, figures), []
    for name in LEAST:
        if max(map(len, shown.splitlines())) > tables.width():
            missed += [name for each, _ in figures if each == name and name in NOT_IMPLIED]
            figures = [figure for figure in figures if figure[0] != name]
            shown = _good_with(study, rows, figures)
    return f"{shown}\n\nno room for {' and '.join(missed)}: --json has all" if missed else shown


def _good_with(study: Study, rows: Sequence[Row], figures: Sequence[Figure]) -> str:
    found = [BEST] if any(row["point"].get("plan") == BEST for row in rows) else []
    columns = ["", *map(_short, study.varied), *(f"{name} plan" for name in found)]
    cells = [
        [
            *(f"{row['id']}", *_given(study, row), *(_plan(row) for _ in found)),
            *(show(row) for _, show in figures),
        ]
        for row in rows
    ]
    return tables.table([*columns, *(name for name, _ in figures)], cells, left=len(columns))


def _plan(row: Row) -> str:
    return str(row["prediction"]["plan_string"])


def _bad(study: Study, rows: Sequence[Row]) -> str:
    columns = ["", *map(_short, study.varied), "why not"]
    cells = [[f"{row['id']}", *_given(study, row), row["reason"]] for row in rows]
    return tables.table(columns, cells, left=len(columns))


def _figures(study: Study, published: bool) -> list[Figure]:
    """The columns of numbers, and how each shows a row's."""
    training = "tokens" in next(study.points())
    costs = [("days", _days), ("node-h", _training_hours), ("MWh", _mwh)]
    return [
        ("step", lambda row: tables.seconds(row["prediction"]["step_s"])),
        *([] if training else [("tokens/s", _tokens_per_s)]),
        ("MFU", lambda row: tables.percent(row["prediction"]["mfu"])),
        *([("efficiency", _efficiency)] if study.scaling is not None else []),
        *([("published", _published_step), ("error", _error)] if published else []),
        ("memory", lambda row: tables.gib(row["prediction"]["memory"]["peak_bytes"])),
        *(costs if training else [("node-h", _hours), ("energy", _energy)]),
        ("waits on", _waits),
    ]


def _fits(row: Row) -> str:
    memory = row["prediction"]["memory"]
    if _verdict(row) == TIGHT:
        return f"{TIGHT}, {round(10 * memory['p_fits'])}0 %"
    over = tables.gib(memory["peak_bytes"] - memory.get("sure_bytes", memory["capacity_bytes"]))
    return f"no, by {over}" if _verdict(row) == DOES_NOT_FIT else "yes"


def _verdict(row: Row) -> str:
    """The verdict on a row's memory; rows of older journals know two."""
    memory = row["prediction"]["memory"]
    return str(memory.get("verdict", FITS if memory["fits"] else DOES_NOT_FIT))


def _tokens_per_s(row: Row) -> str:
    return f"{row['prediction']['tokens_per_s']:,.0f}"


def _efficiency(row: Row) -> str:
    efficiency = (row["scaling"] or {}).get("efficiency")
    return "-" if efficiency is None else tables.percent(efficiency)


def _published_step(row: Row) -> str:
    published = row.get("published")
    return "-" if published is None else tables.seconds(published["step_s"])


def _error(row: Row) -> str:
    published = row.get("published")
    return "-" if published is None else tables.percent(published["error"], sign=True)


def _hours(row: Row) -> str:
    return tables.hours(row["prediction"]["cost"]["node_s_per_step"])


def _energy(row: Row) -> str:
    joules = row["prediction"]["cost"]["energy_j_per_step"]
    return "-" if joules is None else format_energy(joules)


def _days(row: Row) -> str:
    return tables.amount(row["training"]["time_s"] / 86_400)


def _training_hours(row: Row) -> str:
    return tables.hours(row["training"]["node_s"])


def _mwh(row: Row) -> str:
    joules = row["training"]["energy_j"]
    return "-" if joules is None else tables.amount(joules / J_PER_MWH)


def _waits(row: Row) -> str:
    """The axes or the host, whichever compute waits for longest, with the share of the step."""
    parts = row["prediction"]["breakdown_s"]
    exposed = {axes: value for axes, value in parts.items() if axes not in NOT_EXPOSED}
    if not exposed:
        return "-"
    most = max(exposed, key=lambda axes: exposed[axes])
    return f"{most} {tables.percent(exposed[most] / row['prediction']['step_s'])}"


def _given(study: Study, row: Row) -> list[str]:
    return [_value(key, row["point"][key]) if key in row["point"] else "-" for key in study.varied]


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return text_of(value)


def _short(key: str) -> str:
    head, dot, rest = key.partition(".")
    return rest if dot and head in ("plan", "model", "machine") else key
