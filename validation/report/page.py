"""The page: what was asked and answered first, then why, then everything it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from validation.report.figures.style import as_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure


HEADER = ("title", "study", "question", "answer", "sentence")
NARROW = 3  # columns of tables that may stand side by side


@dataclass(frozen=True)
class Drawing:
    """A figure: its name as a file, what it shows in words, and how wide it should be at most."""

    name: str
    figure: Figure
    words: str
    wide: int = 900


@dataclass(frozen=True)
class PageTable:
    """Columns and rows of text; the first `left` columns are words, the others numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page. `lines` are shown as commands are."""

    anchor: str
    title: str
    texts: Sequence[str] = ()
    drawings: Sequence[Drawing] = ()
    tables: Sequence[PageTable] = ()
    lines: Sequence[str] = ()
    timeline: bool = False


@dataclass(frozen=True)
class Page:
    """All that a report says; `study` is the title of what was swept, if anything was."""

    title: str
    study: str
    question: str
    answer: str
    sentence: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    timeline: Mapping[str, Any] = field(default_factory=dict)


def html(page: Page, version: str) -> str:
    """The page as one file that needs nothing else; whatever it says is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("validation.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_bound,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = {
        "version": version,
        **{name: getattr(page, name) for name in HEADER},
        "facts": page.facts,
        "timeline": page.timeline,
        "sections": [_section(section) for section in page.sections],
    }
    return environment.get_template("page.html.j2").render(page=shown) + "\n"


def _bound(shown: Any) -> Any:
    """A text whose percent signs stay on the line of their numbers; markup as it is."""
    plain = isinstance(shown, str) and not hasattr(shown, "__html__")
    return shown.replace(" %", "\N{NO-BREAK SPACE}%") if plain else shown


def _section(section: Section) -> dict[str, Any]:
    from markupsafe import Markup

    drawn = [
        {"svg": Markup(as_svg(each.figure, each.name)), "words": each.words, "wide": each.wide}
        for each in section.drawings
    ]
    return {
        "anchor": section.anchor,
        "title": section.title,
        "texts": section.texts,
        "figures": drawn,
        "tables": section.tables,
        "side": all(table.left == 1 and len(table.columns) <= NARROW for table in section.tables),
        "lines": section.lines,
        "timeline": section.timeline,
    }
