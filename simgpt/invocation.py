"""What a command was asked, as its JSON keeps it: `simgpt report` says it again and draws it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from simgpt.api.collected import collecting

if TYPE_CHECKING:
    from simgpt.studies.study import Study

HELP = ["-h", "--help"]  # what asks any command for its help


def asked(
    model: str, machine: str, how: Mapping[str, Any], recipe: str | None = None, **places: Any
) -> dict[str, Any]:
    """What a step was asked of: the command line, the model and machine that it names, digests of
    files among them, what was set of both, and where ranks land, of which `places` says more."""
    from simgpt.arguments.model import fields_of
    from simgpt.options import settings_of
    from workload.recipes.table import FP8

    given: dict[str, Any] = {"command": command_line(), "model": model, "machine": machine}
    given |= {"compute": how.get("compute", "machine"), "stack": how.get("stack", "simgpt")}
    given |= {"fp8": recipe == FP8} if recipe is not None else {}
    given |= {"routing": how["routing"]} if how.get("routing") else {}
    return {
        "asked": {**given, "files": files_of((model, machine, *_others(given)))},
        "settings": settings_of(how["settings"]),
        "fields": fields_of(how["model_fields"]),
        "placement": {"policy": how["placement"], **places},
    }


def _others(given: Mapping[str, Any]) -> list[str]:
    """The other names that may be files."""
    return [given[key] for key in ("stack", "routing") if key in given]


def asked_of_study(study: Study) -> dict[str, Any]:
    """The command line, where the study's files lie, and digests of those it names."""
    from validation.report.provenance import located

    keys = "model", "machine", "routing"
    named = (point[key] for point in study.points() for key in keys if key in point)
    names = dict.fromkeys(named)
    folder = str(study.folder)
    files = files_of(located(name, folder) for name in names)
    return {"command": command_line(), "folder": _as_utf8(folder), "files": files}


def ran() -> dict[str, Any]:
    """What a record says of its question where its own keys say the rest: the command line."""
    return {"asked": {"command": command_line()}}


def command_line() -> str:
    """The command that runs, or the one that asks as Python did, ready for a shell."""
    asker = collecting()
    words = sys.argv[1:] if asker is None else asker.words
    return _as_utf8(shlex.join(["simgpt", *words]))


def files_of(names: Iterable[str]) -> dict[str, str]:
    """A digest of each file among the names of models and machines."""
    from validation.report.provenance import digest_of, file_of

    paths = [path for path in map(file_of, names) if path is not None]
    return {_as_utf8(str(path)): digest_of(path) for path in paths}


def _as_utf8(text: str) -> str:
    """The text, with what of a file's name is no UTF-8 spelled out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
