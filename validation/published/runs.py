"""Reading published runs: one row of a CSV file each, its numbers checked where they enter."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from topologies.errors import SimgptError
from topologies.files.reading import TABLE_BYTES, UserFile, shipped_text
from topologies.records import record
from validation.published.recipes import with_recipe
from workload.recipes.table import RECIPES
from workload.recomputation.parts import PARTS, RECOMPUTES

# The table of published runs, and the rest of two sweeps of plans of which it has one row of eight.
RUNS, SWEEPS = "published_runs.csv", "published_sweeps.csv"
NEEDED = ("id", "source", "gpu", "gpus_total", "layers", "hidden", "heads", "seq_len")
WHOLE = (
    "gpus_total", "gpus_per_node", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "seq_len",
    "vocab", "global_batch_seqs", "micro_batch", "tp", "pp", "vpp", "cp", "dp", "gx", "gy", "gz",
    "zero_stage", "nics_per_node", "ep", "etp", "experts", "topk", "expert_ffn", "moe_layers",
    "shared_experts", "head_width",
)  # fmt: skip
REAL = (
    *("measured_step_s", "measured_tflops_per_gpu", "measured_mfu", "nic_gbps", "peak_mem_GiB"),
    "tokens_per_s_per_gpu",
)
NARROW = tuple(each.name for each in RECIPES)  # precisions that are a recipe of narrow formats
MOST = 1e12
OF_NONE = ("zero_stage", "nics_per_node", "nic_gbps", "shared_experts", "moe_layers", "experts")
UNSUPPORTED = "unsupported"  # a column that says why a row cannot be predicted
WORDS = {
    "precision": ("bf16", "fp16", "fp32", *NARROW),
    "recompute": RECOMPUTES,
    "flash_attention": ("yes", "no"),
    "sequence_parallel": ("yes", "no"),
    "gradients": ("fp32", "bf16"),
    "moments": ("fp32", "bf16"),
    "optimizer": ("adamw", "muon"),
}
# How a date is written, the surest first: of the run, of a release (23.03), of a preprint, a year.
DATES = (
    (
        r"(?<!\d)(20\d\d)-(0[1-9]|1[0-2])(?!\d)",
        ("notes", "table_or_figure", "provenance", "source"),
    ),
    (r"(?<!\d)(20\d\d)(0[1-9]|1[0-2])(?!\d)", ("table_or_figure", "provenance")),
    (r"(?<![\d.])(2\d)\.(0[1-9]|1[0-2])(?![\d.])", ("provenance", "source")),
    (r"(?<!\d)(2\d)(0[1-9]|1[0-2])\.\d{5}(?!\d)", ("source", "provenance")),
    (r"\b(20\d\d)\b()", ("source", "provenance")),
)


class RunsError(SimgptError):
    """A file of published runs that cannot be read as such."""


_FILE = UserFile("table of runs", RunsError, TABLE_BYTES)


@record(slots=False)
class PublishedRun:
    """One row; an empty cell means unknown, and columns that we do not know are kept."""

    columns: Mapping[str, str]

    @property
    def id(self) -> str:
        """The row's own name."""
        return self.columns["id"]

    @property
    def source(self) -> str:
        """Who published it."""
        return self.columns["source"]

    def text(self, column: str) -> str:
        """A cell as it stands, empty where it is unknown."""
        return self.columns.get(column, "")

    def whole(self, column: str) -> int | None:
        """A cell that holds a whole number, or None where it is unknown."""
        return int(float(self.text(column))) if self.text(column) else None

    def real(self, column: str) -> float | None:
        """A cell that holds a number, or None where it is unknown."""
        return float(self.text(column)) if self.text(column) else None

    @property
    def refusal(self) -> str:
        """Why the row cannot be predicted as it is read; "" where nothing is known against it.

        Of what was published a word may be one that simgpt has no meaning for, which is no error of
        the file.
        """
        if self.text(UNSUPPORTED):
            return self.text(UNSUPPORTED)
        for column, known in WORDS.items():
            cell = self.text(column)
            if column == "recompute" and cell and _is_of_parts_or_layers(cell):
                continue
            if cell and cell not in known:
                return f"{column} = {cell!r} is none of {', '.join(known)}"
        return ""

    @property
    def date(self) -> str:
        """When the software was that of the run, as `2023-03` or `2023`, empty where nothing says:
        the date of the run or of the release, else that of the publication."""
        for pattern, columns in DATES:
            for column in columns:
                found = re.search(pattern, self.text(column))
                if found:
                    year, month = found.groups()
                    return f"20{year[-2:]}-{month}".rstrip("-")
        return ""

    @property
    def stack(self) -> tuple[str, str, str]:
        """The machine, its GPU and the framework: what one efficiency factor is fitted to."""
        return (self.text("machine"), self.text("gpu"), self.text("framework"))


def lines_of(path: Path | None, shipped: str) -> tuple[list[str], str]:
    """The lines of a user's file, or of a shipped one where there is none, and its name."""
    if path is None:
        return shipped_text("validation", f"data/{shipped}").splitlines(), shipped
    return _FILE.lines(path), path.name


def read_runs(path: Path | None = None, shipped: str = RUNS) -> list[PublishedRun]:
    """The runs of a file; without a file, those of a table that comes with simgpt."""
    return runs_of(*lines_of(path, shipped), meant=with_recipe)


def _as_it_stands(cells: dict[str, str]) -> dict[str, str]:
    return cells


def runs_of(
    lines: Iterable[str],
    origin: str,
    names: Mapping[str, str] = MappingProxyType({}),
    meant: Callable[[dict[str, str]], dict[str, str]] = _as_it_stands,
) -> list[PublishedRun]:
    """The runs in the lines of a CSV file; `origin` names it in errors, `names` has the columns'
    names here by those of the file, and `meant` gives a row's cells as they are to be read. A row
    with a cell that cannot be read has that as its refusal."""
    try:
        rows = list(csv.DictReader(lines))
    except csv.Error as error:
        raise RunsError(f"{origin} is not a CSV file: {error}") from None
    if not rows:
        raise RunsError(f"{origin} holds no rows below its header")
    missing = [column for column in NEEDED if column not in rows[0]]
    if missing:
        raise RunsError(f"{origin} has no column {missing[0]}; it needs {', '.join(NEEDED)}")
    seen: dict[str, int] = {}
    runs = []
    for line, row in enumerate(rows, start=2):
        place = f"{origin}, line {line}"
        given = {names.get(name, name): (cell or "").strip() for name, cell in row.items() if name}
        if not given["id"]:
            raise RunsError(f"{place}: id is empty; every row needs a name of its own")
        wrong = _wrong_cells(given)
        cells = meant(given | dict.fromkeys(wrong, ""))
        if wrong:
            cells |= {UNSUPPORTED: "; ".join(wrong.values())}
        if cells["id"] in seen:
            raise RunsError(f"{place}: id {cells['id']!r} stands in line {seen[cells['id']]} too")
        seen[cells["id"]] = line
        runs.append(PublishedRun(cells))
    return runs


def _wrong_cells(cells: Mapping[str, str]) -> dict[str, str]:
    """The cells that hold no number where one belongs, by column with what is wrong: such a row is
    not predicted, and the others are."""
    found = {}
    for column in (*WHOLE, *REAL):
        if cells.get(column) and (why := _wrong(column, cells[column], whole=column in WHOLE)):
            found[column] = why
    return found


def _is_of_parts_or_layers(recompute: str) -> bool:
    """Whether parts of layers run again (moe_act+layernorm), or a chunk's first ones (full:2)."""
    layers = re.fullmatch(r"full:[1-9]\d*", recompute)
    return layers is not None or set(recompute.split("+")) <= set(PARTS)


def _wrong(column: str, text: str, *, whole: bool) -> str:
    """Why a cell holds no number of its column; "" if it does."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    least = 0 if column in OF_NONE else 1e-12
    if least <= value <= MOST and (not whole or value == int(value)):
        return ""
    kind = "a whole number" if whole else "a number"
    bound = "of 0 or more" if not least else "of 1 or more" if whole else "above 0"
    return f"{column} = {text!r} must be {kind} {bound}, or empty"
