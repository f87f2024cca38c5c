"""A study from the words of a command line: `--sweep z=16,64 --sweep device.launch="5 us,9 us"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simgpt.arguments.model import fields_of
from simgpt.options import plan_table, settings_of
from simgpt.studies.errors import StudyError
from simgpt.studies.study import Study, study_of

OPEN, CLOSE = "[(", "])"


def study_of_words(model: str, machine: str, how: Mapping[str, Any]) -> Study:
    """The study of a command that is told of a step as `predict` is, from its options by their
    names; with `swept` values, as of `--sweep`."""
    names = ("devices", "batch", "batch_tokens", "placement", "tokens", "stack", "routing")
    given = {name: how[name] for name in names if how.get(name) is not None}
    settings = {f"machine.{key}": value for key, value in settings_of(how["settings"]).items()}
    fields = {f"model.{key}": value for key, value in fields_of(how["model_fields"]).items()}
    document = {
        **given,
        "model": model,
        "machine": machine,
        "plan": plan_table(how["plan"]),
        "set": settings | fields,
        "sweep": swept_words(how.get("swept", ())),
    }
    return study_of(document, title=f"{model} on {machine}", folder=Path())


def swept_words(words: Sequence[str]) -> dict[str, list[str]]:
    """The values of each `key=v1,v2,…`; a key may be given once.

    >>> swept_words(["z=1,2", "placement=hosts:n[1-2,7],random"])
    {'z': ['1', '2'], 'placement': ['hosts:n[1-2,7]', 'random']}
    """
    found: dict[str, list[str]] = {}
    for word in words:
        key, equals, values = word.partition("=")
        if not equals or not key:
            raise StudyError(f"--sweep {word}: write key=v1,v2,…, as in z=16,64")
        if key in found:
            raise StudyError(f"--sweep {key} stands twice; give all its values in one")
        if key == "plan":
            raise StudyError("--sweep plan=…: sweep the plan's keys, or list plans in a study file")
        found[key] = _split(values)
        if not all(found[key]):
            raise StudyError(f"--sweep {word} has an empty value")
    return found


def _split(values: str) -> list[str]:
    """The values between semicolons where there are any, else between commas; one in brackets
    belongs to its value.

    >>> _split("40x8xH200,8xNDR;dgx-h100")
    ['40x8xH200,8xNDR', 'dgx-h100']
    """
    found, depth = [""], 0
    between = ";" if ";" in values else ","
    for letter in values:
        depth += (letter in OPEN) - (letter in CLOSE)
        if letter == between and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [value.strip() for value in found]
