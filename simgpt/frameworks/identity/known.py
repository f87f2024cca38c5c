"""The table of frameworks, and whose a file is by it.

Each pattern of a row that a file has is one piece of evidence, and one that names the project, as a
module or a command does, is `SURE` pieces. A file is read as a framework's only if its row has
evidence, and more than `CLEAR` times as much as any framework's that is not read: a file that might
be another's is refused, with what it appears to be. Of a framework that is not read one name that
others may have is not enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from simgpt.frameworks.identity.frozen import frozen
from simgpt.frameworks.identity.names import Names
from simgpt.frameworks.identity.rows import rows
from simgpt.frameworks.reading import FrameworkError
from topologies.files.printable import shown
from topologies.records import record

CLEAR = SURE = LEAST = 2
SHOWN = 3  # names of a file that a sentence has
FROZEN = "trains only some of the weights, as LoRA does, which is not modelled"
PARTS = ("keys", "programs")  # which have patterns with stars


@record
class Evidence:
    """What in a file is a framework's: the row, how many of its patterns are there, and by which
    names of the file."""

    row: Mapping[str, Any]
    score: int
    names: tuple[str, ...]

    @property
    def yields(self) -> str:
        """The framework that a file is of where the user says so."""
        return str(self.row.get("yields", ""))

    @property
    def framework(self) -> str:
        """The name under which simgpt reads it, or nothing."""
        return str(self.row.get("reads", ""))


def framework_of(names: Names, origin: str, told: str | None, readable: Sequence[str]) -> str:
    """The framework whose a file is, `told` by the user or not, among those that are `readable` in
    files of its kind; nothing if the names are nobody's. A FrameworkError names what it appears to
    be if that is not read."""
    found = [each for each in evidence_of(names) if told is None or each.yields != told]
    ours = [each for each in found if each.framework in readable]
    if told is not None:
        ours = [each for each in ours if each.framework == told]
    best = max(ours, key=_score, default=None)
    other = max((each for each in found if not each.framework), key=_score, default=None)
    if other is not None and other.score * CLEAR >= (best.score if best else 0):
        raise FrameworkError(refusal(other, origin, frozen(names)))
    elsewhere = max(found, key=_score, default=None)
    if best is None and told is None and elsewhere is not None:
        raise FrameworkError(refusal(elsewhere, origin, frozen(names)))
    if (best or told) and (setting := frozen(names)):
        raise FrameworkError(f"{origin}: {setting} {FROZEN}; full training is")
    return best.framework if best else told or ""


def _score(evidence: Evidence) -> int:
    return evidence.score


def arguments_known(words: Sequence[str]) -> int:
    """How many of a command's words are arguments of a framework whose scripts are read."""
    flags = {flag for row in rows() if "reads" in row for flag in row.get("flags", ())}
    given = {word[2:].partition("=")[0] for word in words if word.startswith("--")}
    return len(given & flags)


def evidence_of(names: Names) -> list[Evidence]:
    """The evidence for each framework of which there is enough."""
    text = _Text(names)
    own = {row["name"]: text.found(row) for row in rows()}
    taken = {name for row in rows() if "reads" in row for name in text.flags_of(row).values()}
    found = []
    for row in rows():
        mine = own[row["name"]]
        if "reads" not in row:
            mine = {pattern: name for pattern, name in mine.items() if name not in taken}
        both = {**mine, **own.get(row.get("of", ""), {})}
        score = sum(_weights().get(pattern, 1) for pattern in both)
        if mine and (_is_named(mine) or (score >= _least(row) and _has_own(row, mine))):
            found.append(Evidence(row, score, tuple(dict.fromkeys(both.values()))))
    return found


def refusal(evidence: Evidence, origin: str, setting: str = "") -> str:
    """What a file appears to be, by which of its names, and what is read instead; `setting` is one
    by which weights are frozen."""
    row = evidence.row
    by = ", ".join(map(shown, evidence.names[:SHOWN]))
    said = f"{origin} appears to belong to {row['name']} ({by})"
    beside = f"; {setting} {FROZEN}" if setting else ""
    if "reads" in row:
        return f"{said}, of which {row['what']} read{beside}"
    read = [each["name"] for each in rows() if "reads" in each]
    hint = f"; {row['hint']}" if "hint" in row else ""
    if "stack" in row and not setting:
        hint = f" (predict has --stack {row['stack']})"
    listed = f"{', '.join(read[:-1])} and {read[-1]}"
    return f"{said}, which is not read{hint}; read are files of {listed}{beside}"


def _least(row: Mapping[str, Any]) -> int:
    return int(row.get("least", 1 if "reads" in row else LEAST))


def _is_named(found: Iterable[str]) -> bool:
    """Whether a pattern among these names the project itself."""
    return any(pattern in _weights() for pattern in found)


@cache
def _weights() -> dict[str, int]:
    """The patterns that name a project, of modules, commands, packages and values, with how much
    evidence they are: what is started is more than what starts it."""
    weights = {"programs": 2 * SURE, "imports": 2 * SURE, "commands": SURE}
    found = {
        pattern: weight
        for part, weight in weights.items()
        for row in rows()
        for pattern in row.get(part, ())
    }
    keys = {pattern for row in rows() for pattern in row.get("keys", ())}
    return found | dict.fromkeys((pattern for pattern in keys if "=" in pattern), SURE)


def _has_own(row: Mapping[str, Any], found: Iterable[str]) -> bool:
    return "own" not in row or bool(set(row["own"]) & set(found))


class _Text:
    """A file's names as lines of text, which a pattern is sought in."""

    def __init__(self, names: Names) -> None:
        keys = [*names.keys, *(f"{name}={value}" for name, value in names.keys.items() if value)]
        self._flags = {name: name for name in names.flags}
        lines = {"keys": keys, "programs": names.programs}
        self._lines = {part: dict.fromkeys(each) for part, each in lines.items()}
        self._joined = {part: "\n".join(each) for part, each in self._lines.items()}
        self._commands, self._imports = names.commands, names.imports

    def found(self, row: Mapping[str, Any]) -> dict[str, str]:
        """A row's patterns that the file has, each with a name of the file's."""
        found: dict[str, str] = {}
        for part in ("programs", "keys"):
            for pattern in row.get(part, ()):
                if name := self._name(part, pattern):
                    found[pattern] = name.split(" ")[0]
        for package in row.get("imports", ()):
            if any(f"{each}.".startswith(f"{package}.") for each in self._imports):
                found[package] = package
        for pattern in row.get("commands", ()):
            if any(f" {pattern} " in command for command in self._commands):
                found[pattern] = pattern.replace("_", "-")
        return found | self.flags_of(row, alike="reads" not in row)

    def flags_of(self, row: Mapping[str, Any], *, alike: bool = False) -> dict[str, str]:
        """A row's flags that the file has; `alike` where dashes count as underscores."""
        names = self._flags
        if alike:
            names = {name.replace("-", "_"): name for name in names} | names
        return {each: f"--{names[each]}" for each in row.get("flags", ()) if each in names}

    def _name(self, part: str, pattern: str) -> str:
        """The first of a part's lines that a pattern stands for."""
        if "*" not in pattern:
            return pattern if pattern in self._lines[part] else ""
        if max(pattern.split("*"), key=len) not in self._joined[part]:  # far sooner told
            return ""
        found = _compiled()[pattern].search(self._joined[part])
        return found[0] if found else ""


@cache
def _compiled() -> dict[str, re.Pattern[str]]:
    """The table's patterns with stars, each for a line of a text."""
    every = {pattern for row in rows() for part in PARTS for pattern in row.get(part, ())}
    return {each: _of_a_line(each) for each in every if "*" in each}


def _of_a_line(pattern: str) -> re.Pattern[str]:
    inner = r"[^\n]*".join(map(re.escape, pattern.split("*")))
    return re.compile(f"^{inner}$", re.MULTILINE)
