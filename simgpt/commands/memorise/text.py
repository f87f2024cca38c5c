"""What `simgpt memorise` answers: its record, a table of it, and its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpt import tables
from workload.gpt import GPT

if TYPE_CHECKING:
    from executor.memorising.spec import Memorisation

Record = dict[str, Any]


def title(gpt: GPT) -> str:
    """A model and its loss."""
    return f"{gpt.name}, {loss_words(gpt.goldfish_k, gpt.goldfish_h)}"


def loss_words(k: int, h: int) -> str:
    """What the loss leaves out."""
    return f"Goldfish k={k}, h={h}" if k else "all tokens"


def record_of(
    tasks: Sequence[Memorisation], results: Sequence[Record], seconds: float, load: float
) -> Record:
    """The JSON record: what all runs share, and each run's rates by counts of repetitions.

    `load` is the machine's, over the last minute of `seconds`.
    """
    from executor.memorising.spec import LAST, REPETITIONS

    first = tasks[0]
    keys = ("documents", "passes", "batch", "ranks", "threads", "lr", "seed", "text")
    return {
        **{key: getattr(first, key) for key in keys},
        "repetitions": list(REPETITIONS),
        "last_tokens": LAST,
        "steps": first.steps,
        "runs": [_run(task, result) for task, result in zip(tasks, results, strict=True)],
        "seconds": seconds,
        "load": load,
    }


def _run(task: Memorisation, result: Record) -> Record:
    from executor.memorising.spec import LAST

    gpt, matched = task.gpt, result["matched"]
    return {
        "model": gpt.name,
        "parameters": gpt.parameters,
        "sequence": gpt.sequence,
        "goldfish_k": gpt.goldfish_k,
        "goldfish_h": gpt.goldfish_h if gpt.goldfish_k else None,
        "exact": {key: counts.count(LAST) / len(counts) for key, counts in matched.items()},
        **result,
    }


def describe(record: Record) -> str:
    """The rates as a table, with what was asked."""
    counts = [str(count) for count in record["repetitions"]]
    columns = ["model", "loss over", "parameters", *(f"{count}x" for count in counts), "loss"]
    rows = [
        [
            run["model"],
            loss_words(run["goldfish_k"], run["goldfish_h"]),
            tables.count(run["parameters"]),
            *(tables.percent(run["exact"][count]) for count in counts),
            f"{run['loss']:.3f}",
        ]
        for run in record["runs"]
    ]
    several, passes = tables.several(record["documents"], "document"), record["passes"]
    *times, last = (str(passes * int(count)) for count in counts)
    about = (
        f"Each column is of {several}. The stream was trained on {tables.several(passes, 'time')}, "
        f"so they were seen {', '.join(times)} and {last} times. A document counts if its last "
        f"{record['last_tokens']} tokens are generated exactly, greedily, from those before them; "
        "the loss is the mean of the last pass, over the tokens that it keeps."
    )
    took = f"took {tables.seconds(record['seconds'])} at a load of {record['load']:.1f}"
    head = "documents generated exactly, by how often they stand in the stream"
    return "\n".join([head, "", tables.table(columns, rows, left=2), "",
                      tables.paragraph(f"{about} All {took}.")])  # fmt: skip


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Draw the record into a file, PNG, SVG or PDF by its suffix; a DiskError says why it cannot be
    written."""
    from topologies.files.writing import figure_bytes, write_whole
    from validation.report.figures.memorisation import memorisation
    from validation.report.figures.style import DPI, drawing

    suffix = path.suffix.lstrip(".")
    about = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix, {})
    with drawing():
        content = figure_bytes(memorisation(record), suffix, dpi=DPI, metadata=about)
    write_whole(path, content)
