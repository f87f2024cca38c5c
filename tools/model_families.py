"""Families of models: parameters as read from a `config.json` or packaged sizes, beside those that
were published or counted. `python -m tools.model_families` writes docs/families.md's tables.

Source of what is compared: validation/data/model_parameters.csv, a source in each row.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from topologies.files.reading import shipped_text
from workload.descriptions.configs import families
from workload.descriptions.described import Described
from workload.descriptions.hub import hub_model
from workload.descriptions.hugging_face import model_from_config

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "families.md"
MODELS = ROOT / "workload" / "descriptions"
DATA = ("hub.toml",)  # which names families as models do
START, END = "<!-- {}: written by tools/model_families.py -->", "<!-- end of {} -->"


@dataclass(frozen=True, slots=True)
class Compared:
    """A model's parameters: those predicted, and those published, as its source writes them."""

    family: str
    model: str  # its name on the Hub; nothing of a family's class
    described: Described
    total: str
    active: str
    source: str

    @property
    def predicted(self) -> int:
        """Parameters with those that are not modelled."""
        return self.described.gpt.parameters + self.described.missing

    @property
    def off(self) -> float:
        """How far the total is off, as a share of the published one."""
        return self.predicted / float(self.total) - 1

    @property
    def active_off(self) -> float:
        """How far active parameters are off, as a share of the published ones; 0 where none are
        published."""
        published = float(self.active or 0)
        return self.described.gpt.active_parameters / published - 1 if published else 0.0


def compared() -> list[Compared]:
    """All rows of the table, in its order."""
    lines = io.StringIO(shipped_text("validation", "data/model_parameters.csv"))
    return [
        Compared(
            row["family"],
            row["model"],
            _described(row["family"], row["model"], row["config"]),
            row["total"],
            row["active"],
            row["source"],
        )
        for row in csv.DictReader(lines)
    ]


def _described(family: str, model: str, config: str) -> Described:
    if model:
        found = hub_model(model)
        if found is None:
            raise ValueError(f"{model} has no packaged sizes")
        return found
    return model_from_config({"model_type": family, **json.loads(config)}, family, name=family)


def published_table() -> Iterator[str]:
    """Released models, one line of Markdown each."""
    yield "| family | model | predicted | published | off | active | published | off | source |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for each in compared():
        if not each.model:
            continue
        active = _billions(each.described.gpt.active_parameters) if each.active else ""
        off = f"{each.active_off:+.1%}" if each.active else ""
        total = f"{_billions(each.predicted)} | {_published(each.total)} | {each.off:+.2%}"
        of_one = f"{active} | {_published(each.active)} | {off}"
        yield f"| `{each.family}` | {each.model} | {total} | {of_one} | {each.source} |"


def families_table() -> Iterator[str]:
    """All families, one line of Markdown each."""
    rows = families.tables()["families"]
    counted = {each.family: each for each in compared() if not each.model}
    yield "| family | like | of transformers' class | predicted | of these not modelled | files |"
    yield "|---|---|---|---|---|---|"
    for name, row in rows.items():
        like = f"`{row['like']}`" if "like" in row else ""
        of_class = "| | | |"
        if name in counted:
            one = counted[name]
            of_class = f"| {int(one.total):,} | {one.predicted:,} | {one.described.missing:,} |"
        yield f"| `{name}` | {like} {of_class} {len(files_of(name))} |"


def files_of(family: str) -> list[str]:
    """The files of workload/descriptions that name a family: what adding it took."""
    named = re.compile(rf'"{re.escape(family)}"|\[families\."?{re.escape(family)}"?[\].]')
    files = [*MODELS.rglob("*.py"), *MODELS.rglob("*.toml")]
    texts = {file.name: file.read_text(encoding="utf-8") for file in files if file.name not in DATA}
    return sorted(name for name, text in texts.items() if named.search(text))


def _billions(count: int) -> str:
    return f"{count / 1e9:,.4g} B"


def _published(count: str) -> str:
    """A published number: whole where it is one, else in billions with its own digits."""
    if not count:
        return ""
    number = float(count)
    digits = len(count.partition("e")[0].replace(".", ""))
    return f"{int(count):,}" if count.isdigit() else f"{number / 1e9:,.{max(digits, 4)}g} B"


TABLES = {"published": published_table, "families": families_table}


def page(text: str) -> str:
    """The page's text with its tables as they are now."""
    for name, table in TABLES.items():
        start, end = START.format(name), END.format(name)
        before, _, rest = text.partition(start)
        lines = "\n".join(table())
        text = f"{before}{start}\n\n{lines}\n\n{end}{rest.partition(end)[2]}"
    return text


@click.command()
def main() -> None:
    """Write the page's tables."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
