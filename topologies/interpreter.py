"""Child processes of Python that import nothing from the folder where the user stands.

Python looks for modules there first (`-m`, `-c`, a console), so that a project's own `random.py` or
`executor/` would run in place of what a child means. A child is therefore started with
PYTHONSAFEPATH, which its own children inherit, and finds this product where its parent found it.
What PYTHONPATH names is the user's choice and stays, even if it is that folder.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import process

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def child_environment() -> dict[str, str]:
    """The variables with which a child imports what this process does, and nothing else."""
    safe, chosen = {"PYTHONSAFEPATH": "1"}, _chosen()
    if _ROOT in (*chosen, *site.getsitepackages(), site.getusersitepackages()):
        return safe
    return safe | {"PYTHONPATH": os.pathsep.join([_ROOT, *chosen])}


@contextmanager
def apart_from_the_folder() -> Iterator[None]:
    """Processes that multiprocessing starts meanwhile, its resource tracker among them, have that
    environment and a `sys.path` without the folder."""
    path, own = sys.path[:], child_environment()
    before = {name: os.environ.get(name) for name in own}
    kept = [entry for entry in path if not _is_the_folder(entry)]
    sys.path[:] = kept if _ROOT in kept or "PYTHONPATH" not in own else [_ROOT, *kept]
    os.environ.update(own)
    try:
        yield
    finally:
        sys.path[:] = path
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _is_the_folder(entry: str) -> bool:
    """Whether an entry of `sys.path` is the folder where the user stands, and neither one that
    PYTHONPATH names nor where this product lies."""
    if entry == "":  # of a console, whatever the folder is by then
        return True
    start: str = process.ORIGINAL_DIR or os.curdir  # type: ignore[attr-defined]
    here = [os.curdir, start]
    return _is_among(entry, here) and not _is_among(entry, [_ROOT, *_chosen()])


def _is_among(folder: str, others: list[str]) -> bool:
    return os.path.realpath(folder) in map(os.path.realpath, others)


def _chosen() -> list[str]:
    """The entries of PYTHONPATH; an empty one among others is the current folder to Python."""
    path = os.environ.get("PYTHONPATH")
    return path.split(os.pathsep) if path else []
