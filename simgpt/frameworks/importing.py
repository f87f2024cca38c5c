"""From files of other frameworks to a question of simgpt's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from simgpt.frameworks import megatron
from simgpt.frameworks.files import MEGATRON, Described, read_file
from simgpt.frameworks.question import Question, question_of
from simgpt.frameworks.reading import FrameworkError, Reading, Remark
from topologies.files.reading import shipped_toml

Reader = Callable[[Reading, int | None], None]
READERS: Mapping[str, Reader] = {MEGATRON: megatron.read}


def imported(
    paths: Sequence[Path],
    framework: str | None = None,
    *,
    devices: int | None = None,
    model: str | None = None,
    changed: Mapping[str, Any] | None = None,
    defined: Mapping[str, str] | None = None,
) -> Question:
    """The question that files of a framework ask; without `framework` each file is known by what it
    says. `model` is a MODEL for files that say nothing of one, `changed` are fields of it,
    `defined` variables of a script's surroundings."""
    described = [read_file(path, framework, defined or {}) for path in paths]
    return question_from(described, devices=devices, model=model, changed=changed or {})


def question_from(
    described: Sequence[Described],
    *,
    devices: int | None = None,
    model: str | None = None,
    changed: Mapping[str, Any],
) -> Question:
    """The question of what files say, later ones before earlier ones."""
    names = tuple(dict.fromkeys(each.framework for each in described))
    if len(names) > 1:
        raise FrameworkError(f"files of {' and '.join(names)} are not read as one; give one's")
    own = [each.devices for each in described if each.devices is not None]
    devices = devices or (own[-1] if own else None)
    table = table_of(names[0])
    settings = {name: value for each in described for name, value in each.settings.items()}
    reading = Reading(table, settings)
    READERS[names[0]](reading, devices)
    reading.sort_rest()
    left_out = [text for each in described for text in each.left_out]
    why = "it cannot be told here, so what depends on it is left out"
    conditions = tuple(Remark(text, "", why) for text in left_out)
    return question_of(
        reading.fields,
        frameworks=names,
        stack=reading.stack,
        devices=devices,
        model=model,
        changed=changed,
        remarks=(
            (*reading.changes, *conditions),
            tuple(reading.refused),
            tuple(reading.without_effect),
        ),
        settings=len(settings),
    )


def table_of(framework: str) -> dict[str, Any]:
    """A framework's table of names."""
    return shipped_toml("simgpt", f"frameworks/{framework.replace('-', '_')}.toml")
