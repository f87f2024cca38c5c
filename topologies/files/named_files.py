"""Names that may stand for files: of a model, a machine, a stack, a histogram or a plan."""

from __future__ import annotations

from pathlib import Path

FILES = (".toml", ".json")


def file_of(name: str) -> Path | None:
    """The file that a name stands for, which the variant of a machine may follow; None where it is
    no file.

    >>> file_of("mine.toml:no-gdr"), file_of("frontier:rccl"), file_of("layers=2,norm=x.toml")
    (PosixPath('mine.toml'), None, None)
    """
    path = Path(name.partition(":")[0])
    return path if path.suffix in FILES and "=" not in name.partition(":")[0] else None


def located(name: str, folder: str | Path) -> str:
    """The name as a command line gives it, where a file in that folder gave it.

    >>> located("mine.toml:no-gdr", "runs"), located("frontier", "runs")
    ('runs/mine.toml:no-gdr', 'frontier')
    """
    return str(Path(folder) / name) if file_of(name) else name


def is_plan_file(text: str) -> bool:
    """Whether the text of a plan is the path of its file, in which = and : may stand.

    >>> is_plan_file("runs/dp=8.toml"), is_plan_file("dp=8,recompute=full:7")
    (True, False)
    """
    return text.endswith(FILES)


def located_plan(text: str, folder: str | Path) -> str:
    """The text of a plan, or the path of its file, where a file in that folder gave it."""
    return str(Path(folder) / text) if is_plan_file(text) else text
