"""Options and output of the benchmarks. Only click and the standard library are imported, so that
another commit's packages can be timed (tools/bench_against.py)."""

from __future__ import annotations

import functools
import json
import os
import platform
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

Row = dict[str, Any]
CORE = "simulator.engine._core"


def benchmark(*columns: str) -> Callable[[Callable[..., list[Row]]], click.Command]:
    """Make a command of a function that measures rows of these columns at a size.

    The function takes `smallest`, beside options of its own. Its rows are printed as a table and,
    with `--json`, written together with what they were measured on.
    """

    def decorated(measure: Callable[..., list[Row]]) -> click.Command:
        @click.command()
        @click.option("--smallest", is_flag=True, help="At its smallest, to see that it works.")
        @click.option(
            "--json",
            "file",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Also write the rows, and what they were measured on, to FILE.",
            metavar="FILE",
        )
        @functools.wraps(measure)
        def main(file: Path | None, **options: Any) -> None:
            about = measured_on()
            rows = measure(**options)
            click.echo(table(rows, columns))
            if file is not None:
                text = json.dumps({"measured_on": about, "rows": rows}, indent=1)
                file.write_text(text + "\n", encoding="utf-8")

        return main

    return decorated


def cpu_s() -> float:
    """Processor time of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def packages() -> Path:
    """The folder that simgpt is imported from."""
    found = find_spec("simgpt")
    if found is None or not found.submodule_search_locations:
        raise click.ClickException("simgpt cannot be imported")
    return Path(found.submodule_search_locations[0]).resolve().parent


def measured_on() -> Row:
    """The machine, its load before the benchmark, and the packages that are timed."""
    try:
        is_compiled = find_spec(CORE) is not None
    except ImportError:
        is_compiled = False
    return {
        "packages": str(packages()),
        "compiled_core": is_compiled,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as text, numbers to four digits; a column that no row has is left out."""
    shown = [name for name in columns if any(row[name] is not None for row in rows)]
    lines = [shown, *([_cell(row[name]) for name in shown] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
