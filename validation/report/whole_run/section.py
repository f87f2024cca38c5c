"""The section of a report that says when a whole run is done."""

from __future__ import annotations

from collections.abc import Sequence

from validation.report.page import Drawing, PageTable, Section
from validation.report.whole_run.calendar import Calendar
from validation.report.whole_run.calendar_figure import calendar
from validation.report.words import percent, several

DAY_S = 86_400.0
WORDS = (
    "One life of the run: the one of the drawn lives that ends in the middle. Training counts once "
    "it is in a checkpoint. Below are failures, and jobs where there are several."
)


def calendar_sections(calendars: Sequence[Calendar]) -> list[Section]:
    """A section for each calendar."""
    return [_section(each, number) for number, each in enumerate(calendars, start=1)]


def _section(found: Calendar, number: int) -> Section:
    low, middle, high = found.ends
    rows = [
        ("start", found.start),
        ("end", middle),
        ("80 % range of the end", f"{low} to {high}"),
        ("expected run, by formulas", f"{found.expected_s / DAY_S:,.1f} days"),
        ("effective training time", percent(found.effective_share)),
        ("training between saves", f"{found.interval_s / 60:,.1f} minutes"),
    ]
    shares = sorted(found.shares.items(), key=lambda item: -item[1])
    parts = [(name, percent(share)) for name, share in shares if share >= 0.00005]
    tables = [
        PageTable(("run", ""), rows),
        PageTable(("where the time goes", "share"), parts),
    ]
    text = f"{found.model} on {found.where}."
    drawings = []
    if found.progress:
        text += f" The life that is drawn has {several(found.saves, 'save')}, "
        text += f"{several(found.failures, 'failure')} and {several(len(found.jobs_s), 'job')}."
        drawings = [Drawing(f"calendar-{number}", calendar(found), WORDS)]
    name = "calendar" if number == 1 else f"calendar-{number}"
    return Section(name, "The whole run", [text], drawings, tables)
