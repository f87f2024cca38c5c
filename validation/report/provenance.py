"""What a step was asked of, as a command line names it: enough to ask it again."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from topologies.files.printable import shown as text_shown
from topologies.files.reading import UserFile
from topologies.records import record
from topologies.session import session_cached
from topologies.shipped import machine_names, variant_names
from validation.report.answer_files import Reader, ReportError

FILES = (".toml", ".json")
_FILE = UserFile("file", ReportError)
USUAL = {"placement": "scheduler", "compute": "machine", "stack": "simgpt", "routing": ""}


@record(slots=False)
class Asked:
    """Model and machine by name or file, and what was changed of them.

    `fields` are the model's that were set, `settings` keys of the machine that were set. `files`
    has the digest of each file among them as it was when the answer was made. With `fp8` the plan,
    whose text is without it, has precision=fp8.
    """

    model: str
    machine: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    placement: str = USUAL["placement"]
    compute: str = USUAL["compute"]
    files: Mapping[str, str] = field(default_factory=dict)
    stack: str = USUAL["stack"]
    fp8: bool = False
    routing: str = USUAL["routing"]

    @property
    def is_usual(self) -> bool:
        """Whether model and machine are ours, as they come."""
        files = any(file_of(name) for name in (self.model, self.machine, self.stack, self.routing))
        ours = not (files or "=" in self.model)
        return ours and not (self.fields or self.settings)

    @property
    def changes(self) -> dict[str, Any]:
        """What was changed of the machine, and of how its steps are worked out, by key."""
        how = {key: getattr(self, key) for key in USUAL if getattr(self, key) != USUAL[key]}
        how |= {"precision": "fp8"} if self.fp8 else {}
        return {**self.settings, **how}

    def with_precision(self, plan: str) -> str:
        """A plan's text with the precision that it is without."""
        return plan + ",precision=fp8" * self.fp8

    def words(self, devices: int, plan: str, batch: int, tokens: float | None) -> str:
        """The `simgpt predict` of one step, ready for a shell."""
        plan = self.with_precision(plan)
        words = ["simgpt", "predict", self.model, "-m", self.machine, "-n", str(devices)]
        words += ["--plan", plan, "--batch", str(batch)]
        for key, usual in USUAL.items():
            words += [] if getattr(self, key) == usual else [f"--{key}", getattr(self, key)]
        words += ["--tokens", f"{tokens:.0f}"] if tokens else []
        for key, value in self.settings.items():
            words += ["--set", f"{key}={shown(value)}"]
        for key, value in self.fields.items():
            words += ["--model-set", f"{key}={shown(value)}"]
        return shlex.join(words)


def asked_of(document: Mapping[str, Any], origin: str) -> Asked:
    """What an answer says of its question; older answers name the model and the machine alone."""
    given = _table(document, "asked")
    of = Reader({"model": "", "machine": "", **document, **given}, origin)
    placement = _table(document, "placement").get("policy")
    model = of.text("model")
    if model.startswith("-"):  # on the command line that a page shows it would be an option
        raise ReportError(f"{origin}: model = {text_shown(model)} should not begin with -")
    return Asked(
        model,
        of.text("machine"),
        _table(document, "fields"),
        _table(document, "settings"),
        str(placement or USUAL["placement"]),
        str(given.get("compute") or USUAL["compute"]),
        {str(path): str(digest) for path, digest in _table(given, "files").items()},
        str(given.get("stack") or USUAL["stack"]),
        True in (given.get("fp8"), document.get("fp8")),
        str(given.get("routing") or USUAL["routing"]),
    )


def shown(value: Any) -> str:
    """A value as it is written on a command line."""
    return value if isinstance(value, str) else json.dumps(value)


def file_of(name: str) -> Path | None:
    """The file that the name of a model or a machine stands for; a variant may follow it."""
    path = Path(name.partition(":")[0])
    return path if path.suffix in FILES else None


def located(name: str, folder: str) -> str:
    """The name as a command line gives it, where a study in that folder gave it."""
    return str(Path(folder) / name) if file_of(name) and folder else name


def named(name: str, given: str) -> str:
    """A model or machine as it is spoken of: by its name, and its file where the two differ."""
    path = file_of(given)
    if path is None:
        return given
    _, colon, variant = given.partition(":")
    file = path.name + colon + variant
    return file if name.partition(":")[0] == path.stem else f"{name} ({file})"


def without_usual_variant(machine: str) -> str:
    """A machine of ours by its name alone, where the variant behind it is the one it has anyway: so
    one machine has one name, whichever of the two an answer has."""
    name, _, variant = machine.partition(":")
    return name if variant and variant == _usual_variant(name) else machine


@session_cached(64)
def _usual_variant(name: str) -> str:
    return next(iter(variant_names(name)), "") if name in machine_names() else ""


def digest_of(path: Path) -> str:
    """A digest of what a file says; "" where it cannot be read."""
    try:
        return hashlib.sha256(_FILE.content(path)).hexdigest()[:32]
    except ReportError:
        return ""


def check_file(name: str, files: Mapping[str, str]) -> None:
    """Refuse the file of a name unless it is, byte by byte, the one that the answer was made with;
    so nothing that an answer names is opened for what it says, but what its maker had opened."""
    path = file_of(name)
    if path is None and not name.endswith(FILES):
        return
    known = files.get(str(path))
    if path is None or known is None:
        raise ReportError(f"{name} is a file, and the answer does not say what was in it")
    found = digest_of(path)
    if not found:
        raise ReportError(f"{path} is not there any more (seen from {Path.cwd()})")
    if found != known:
        raise ReportError(f"{path} has been changed since")


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}
