"""Whether files said enough for a step: settings that are known, and sizes among them."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from simgpt.frameworks.identity.rows import rows
from simgpt.frameworks.imported_job import ImportedJob
from simgpt.frameworks.reading import FrameworkError
from topologies.files.printable import shown

SHOWN = 3


def check_sizes(
    origin: str, job: ImportedJob, settings: Sequence[str], *, given: bool = False
) -> None:
    """Refuse files of whose settings most are not known as their framework's, or which say no size
    of the step that they are read for, as its batch; `given` where the user says that."""
    read = [row for row in rows() if row.get("reads") in job.frameworks]
    names = " and ".join(row["name"] for row in read)
    unknown = [name for name in job.unknown if not name.startswith("$")]
    if 2 * len(unknown) > len(settings):
        raise FrameworkError(
            f"{origin}: {len(unknown)} of {len(settings)} settings are not known as {names}'s "
            f"({', '.join(map(shown, unknown[:SHOWN]))})"
        )
    sizes = [size for row in read for size in row["sizes"]]
    if not given and not any(fnmatchcase(name, size) for name in settings for size in sizes):
        size = sizes[0]
        raise FrameworkError(
            f"{origin} says no batch, as {read[0]['name']}'s {size} does, so that it asks for "
            "no step; give --batch"
        )
