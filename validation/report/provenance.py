"""What a step was asked of, as a command line names it: enough to ask it again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topologies.files.named_files import FILES, file_of
from topologies.files.printable import shown as text_shown
from topologies.files.reading import UserFile
from topologies.session import session_cached
from topologies.shipped import machine_names, variant_names
from validation.report.answer_files import Reader, ReportError

_FILE = UserFile("file", ReportError)
ABOUT = ("question", "command", "fp8", "stack_chosen", "files", "folder")  # no fields of a question
Fields = dict[str, Any]  # its fields, as `simgpt/question.py` has them
# Of answers that do not say otherwise.
USUAL = {"placement": "scheduler", "compute": "machine", "stack": "simgpt", "routing": ""}


def question_in(document: Mapping[str, Any], origin: str) -> Fields:
    """The fields of the question that a prediction's JSON answers, its plan as it was filled in; of
    answers of old, which name the model and the machine alone, those."""
    said = table_in(document, "asked")
    of = Reader({"model": "", "machine": "", **document, **said}, origin)
    model = of.text("model")
    if model.startswith("-"):  # on the command line that a page shows it would be an option
        raise ReportError(f"{origin}: model = {text_shown(model)} should not begin with -")
    found: Fields = {"model": model, "machine": of.text("machine")}
    found |= {key: str(said.get(key) or usual) for key, usual in USUAL.items()}
    found["stack"] = str(said.get("stack") or document.get("stack") or USUAL["stack"])
    found["placement"] = str(table_in(document, "placement").get("policy") or USUAL["placement"])
    found |= {key: each for key, each in said.items() if key not in (*ABOUT, *found)}
    found |= {"set": table_in(document, "settings"), "model_set": table_in(document, "fields")}
    if "plan_string" in document:
        found |= _of_prediction(of, fp8=True in (said.get("fp8"), document.get("fp8")))
    return found


def _of_prediction(of: Reader, *, fp8: bool) -> Fields:
    """What a prediction says of its plan, its devices, its batch and the tokens of a training."""
    plan = without_fp8(of.text("plan_string")) + ",precision=fp8" * fp8
    found: Fields = {"devices": of.whole("devices"), "plan": plan}
    found["batch"] = Reader(of.table("plan"), of.origin).whole("batch")
    if isinstance(of.document.get("training"), dict):
        found["tokens"] = of.within("training").positive("tokens")
    return found


def without_fp8(plan: str) -> str:
    """A plan without the precision that is the stack's."""
    return ",".join(word for word in plan.split(",") if word != "precision=fp8")


def is_usual(question: Fields) -> bool:
    """Whether model and machine are ours, as they come."""
    files = any(file_of(str(question[key])) for key in ("model", "machine", "stack", "routing"))
    ours = not (files or "=" in question["model"])
    return ours and not (question["model_set"] or question["set"])


def is_fp8(question: Fields) -> bool:
    """Whether linears are in the 8 bits of the stack's own recipe."""
    return "precision=fp8" in str(question.get("plan", "")).split(",")


def changes(question: Fields) -> dict[str, Any]:
    """What was changed of the machine, and of how its steps are worked out, by key."""
    how = {key: question[key] for key in USUAL if question[key] != USUAL[key]}
    how |= {"precision": "fp8"} if is_fp8(question) else {}
    return {**question["set"], **how}


def files_in(document: Mapping[str, Any]) -> dict[str, str]:
    """The digests of the files that an answer was made of, by their names."""
    said = table_in(table_in(document, "asked"), "files")
    return {str(path): str(digest) for path, digest in said.items()}


def shown(value: Any) -> str:
    """A value as it is written on a command line."""
    return value if isinstance(value, str) else json.dumps(value)


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


def table_in(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A table of a document; an empty one where it has none."""
    found = document.get(key)
    return found if isinstance(found, dict) else {}
