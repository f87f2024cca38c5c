"""The page: what was asked and answered first, then why, then everything it rests on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from topologies.records import record
from validation.report.figures.style import as_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure


HEADER = ("title", "study", "question", "answer", "sentence")
PLAN_COMMA = re.compile(r",(?=[a-z_]+=)")
BEFORE_A_UNIT = re.compile(r"(?<=\d) (?=%|(?:[mµn]?s|days|[KMGT]iB|[kMGTPE]?(?:FLOP/s|Wh|J))\b)")
NARROW = 3  # columns of tables that may stand side by side


@record(slots=False)
class Drawing:
    """A figure: its name as a file, what it shows in words, and how wide it should be at most."""

    name: str
    figure: Figure
    words: str
    wide: int = 900
    still: bool = False  # a copy of an interactive part, for print alone


@record(slots=False)
class PageTable:
    """Columns and rows of text; the first `left` columns are words, the others numbers.

    `values` has by column what its rows are sorted by, `marks` what a row's point in a scatter
    is drawn from (`point_of` in facts.py); without values the table keeps its order.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    caption: str = ""
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    marks: Sequence[Mapping[str, str]] = ()

    @property
    def is_sortable(self) -> bool:
        """Whether readers may sort and filter it."""
        return bool(self.values) and len(self.rows) > 1


@record(slots=False)
class Player:
    """An interactive timeline: its anchor, which of the page's steps it shows, its legend, how
    many ranks of each step, and the names of the steps where there are several."""

    anchor: str
    steps: Sequence[int]
    key: Sequence[Mapping[str, str]]
    ranks: int
    names: Sequence[str] = ()


@record(slots=False)
class Section:
    """A part of the page. `lines` are shown as commands are; `short` is its name among the links,
    its title if empty. One that answers a question has the answer, a sentence and facts."""

    anchor: str
    title: str
    texts: Sequence[str] = ()
    drawings: Sequence[Drawing] = ()
    tables: Sequence[PageTable] = ()
    lines: Sequence[str] = ()
    player: Player | None = None
    short: str = ""
    answer: str = ""
    sentence: str = ""
    facts: Sequence[tuple[str, str]] = ()


@record(slots=False)
class Page:
    """All that a report says; `study` is the title of what was swept, if anything was. `steps` are
    the steps that players draw, `contents` the anchor, question and answer of each of several
    questions."""

    title: str
    study: str
    question: str
    answer: str
    sentence: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    steps: Sequence[Mapping[str, Any]] = ()
    contents: Sequence[tuple[str, str, str]] = ()


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
    environment.filters["broken"] = broken
    shown = {
        "version": version,
        **{name: getattr(page, name) for name in HEADER},
        "facts": page.facts,
        "contents": page.contents,
        "steps": page.steps,
        "sortable": any(table.is_sortable for each in page.sections for table in each.tables),
        "sections": [_section(section) for section in page.sections],
    }
    return environment.get_template("page.html.j2").render(page=shown) + "\n"


def _bound(shown: Any) -> Any:
    """A text whose units stay on the line of their numbers; markup as it is."""
    plain = isinstance(shown, str) and not hasattr(shown, "__html__")
    return BEFORE_A_UNIT.sub("\N{NO-BREAK SPACE}", shown) if plain else shown


def broken(text: str) -> Any:
    """A text whose plans may break into lines after their commas, as markup."""
    from markupsafe import Markup, escape

    parts = PLAN_COMMA.split(str(_bound(text)))
    return Markup(",<wbr>").join(escape(part) for part in parts)


def _section(section: Section) -> dict[str, Any]:
    from markupsafe import Markup

    drawn = [
        {
            "svg": Markup(as_svg(each.figure, each.name)),
            "words": each.words,
            "wide": each.wide,
            "still": each.still,
        }
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
        "player": section.player,
        **{name: getattr(section, name) for name in ("short", "answer", "sentence", "facts")},
    }
