"""How long files and functions are: `python -m tests.lengths [FOLDER...]` prints the long ones.

Above 500 lines of a file or 60 of a function a test fails (test_house.py); from 300 and 40 on they
are printed here, the longest first, for whoever edits them next.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("topologies", "workload", "simulator", "executor", "validation", "simgpt")
MOST_OF_A_FILE, MOST_OF_A_FUNCTION = 500, 60
LONG_FILE, LONG_FUNCTION = 300, 40


class Length(NamedTuple):
    """How many lines a file has, or a function of it from its name to its last line."""

    lines: int
    place: str


def file_lengths(paths: Iterable[Path]) -> Iterator[Length]:
    """The length of each file."""
    for path in paths:
        yield Length(len(path.read_text(encoding="utf-8").splitlines()), _shown(path))


def function_lengths(path: Path, tree: ast.AST) -> Iterator[Length]:
    """The length of each function of a file, methods and inner ones too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Length(lines, f"{_shown(path)}:{node.lineno} {node.name}")


def long_ones(paths: Iterable[Path]) -> tuple[list[Length], list[Length]]:
    """Files and functions that are longer than most should be, each the longest first."""
    every = sorted(paths)
    parsed = ((path, ast.parse(path.read_text(encoding="utf-8"))) for path in every)
    functions = [each for path, tree in parsed for each in function_lengths(path, tree)]
    return _above(LONG_FILE, file_lengths(every)), _above(LONG_FUNCTION, functions)


def _above(least: int, lengths: Iterable[Length]) -> list[Length]:
    found = [each for each in lengths if each.lines > least]
    return sorted(found, key=lambda each: (-each.lines, each.place))


def _shown(path: Path) -> str:
    return (path.relative_to(ROOT) if path.is_relative_to(ROOT) else path).as_posix()


def main(folders: list[str]) -> None:
    """Print what is long in the folders, or in all packages."""
    roots = [Path(each).resolve() for each in folders] or [ROOT / each for each in PACKAGES]
    files, functions = long_ones(path for root in roots for path in root.rglob("*.py"))
    for title, found in (
        (f"files above {LONG_FILE} lines", files),
        (f"functions above {LONG_FUNCTION} lines", functions),
    ):
        print(f"{len(found)} {title}")
        for each in found:
            print(f"{each.lines:6}  {each.place}")


if __name__ == "__main__":
    main(sys.argv[1:])
