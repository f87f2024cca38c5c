"""One description in a framework's words, while it is read: what it says, by which name, and what
of that a question of simgpt's does not carry.

A framework's table (`simgpt/frameworks/*.toml`) sorts its names:

- `numbers`, `switches` and `words` are one field of a model or a plan each, in both directions;
- `changes` say what simgpt assumes instead of what it does not carry, `refused` why it answers
  nothing; under `above_one` stand names whose value 1 says nothing;
- `without_effect` are patterns of names that bear neither on a step's time nor on its memory;
- `belonging` are groups of names (patterns) that mean nothing while all of the switches `of` are
  off: not given, or false, null, 0 and such; with `above_one` 1 is off too, with `on` all but these
  words, and `unsaid_is_on` says that a switch that is not given is on. A section that is not
  `enabled` means nothing either.

All other names are read by the framework's module, or else are said to be unknown.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

from simgpt.frameworks.switches import OFF, switched_off
from topologies.errors import SimgptError
from topologies.files.printable import shown
from topologies.records import record
from workload.model.fields import MOST as MOST_OF_MODELS
from workload.splits.plan_values import MOST as MOST_OF_PLANS

MOST, DIGITS = 10**12, 12
MOST_SETTINGS = 10_000  # of all files of a question
MOST_NEAREST = 50  # settings that are in no table, and of which the nearest name is sought
ON, DOWN = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
HINTED = 1_000  # characters of a value that are looked through for what it lacks
_VARIABLE = re.compile(r"\$(?:[({]+[^A-Za-z_)]*)?(?:oc\.env: *)?([A-Za-z_]\w*)")
_RESOLVER = re.compile(r"\$\{([A-Za-z_][\w.]*):(?![-=+?])")
_REFERENCE = re.compile(r"\$\{\.*(\w+(?:\.\w+)+|(?<=\.)\w+)\}")  # as OmegaConf has them
MOST_OF_FIELDS = MOST_OF_MODELS | {"zero": 3}
MAY_BE_NONE = ("zero",)  # of the fields that one setting counts
_NUMBERS = re.compile(r"[\[(]?(?:\s*-?\d+[\s,]*)++[\])]?,?")
LIKE = 0.8  # of difflib's ratio: names that are taken for one another's misspelling


class FrameworkError(SimgptError):
    """A framework's file that cannot be read, or settings that mean nothing to simgpt."""


class NotSaidError(FrameworkError):
    """A setting whose value is that of a variable, or of a command, that a script does not say."""


@record
class Remark:
    """A setting that a question does not carry, as it is spelled, and what simgpt does instead."""

    name: str
    value: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} {self.value}".rstrip() if self.value != "true" else self.name


class Reading:
    """What is known of a description: its settings by name, and the fields read from them.

    `fields` has keys of `GPT` and of `Plan`; every setting that a method of this class has
    looked at counts as read, and `sort_rest` sorts all others, of which `unknown` ones are in no
    table. `names` are the file's own names of settings, where they are not the table's; `model` has
    the fields of the model that the user names, and those that are set beside it, which come before
    the file's; `stack` is that of the files and `stack_words` say why, `asked_stack` is taken in
    its place; with `has_deepspeed` DeepSpeed's JSON is given beside a script.
    """

    def __init__(
        self,
        table: Mapping[str, Any],
        settings: Mapping[str, Any],
        names: Mapping[str, str] | None = None,
        model: Mapping[str, Any] | None = None,
        asked_stack: str | None = None,
        *,
        has_deepspeed: bool = False,
    ) -> None:
        self.table = table
        self.names = names or {}
        self.model = model or {}
        self.stack, self.stack_words = str(table["stack"]), ""
        self.asked_stack, self.has_deepspeed = asked_stack, has_deepspeed
        if len(settings) > MOST_SETTINGS:
            raise FrameworkError(f"the files have more than {MOST_SETTINGS:,} settings")
        self.settings = {name: text_of(value) for name, value in settings.items()}
        self.fields: dict[str, Any] = {}
        self.changes: list[Remark] = []
        self.refused: list[Remark] = []
        self.without_effect: list[Remark] = []
        self.unknown: list[str] = []
        self._read: set[str] = set()

    @property
    def taken_stack(self) -> str:
        """The stack of the question: the one that is asked for, or else the files'."""
        return self.asked_stack or self.stack

    def of_model(self, field: str, default: Any = 0) -> Any:
        """A field of the model: the user's, or else as it was read, or else the default."""
        return self.model.get(field, self.fields.get(field, default))

    def text(self, name: str, default: str = "") -> str:
        """The text of a setting; the default where it is not given, or null."""
        self._read.add(name)
        value = self.settings.get(name, "")
        return default if value.lower() in ("", "none", "null") else value

    def given(self, name: str) -> bool:
        """Whether a setting is given and not switched off."""
        return self.text(name).lower() not in OFF

    def switch(self, name: str, *, default: bool = False) -> bool:
        """Whether a switch is on."""
        value = self.text(name, "true" if default else "false").lower()
        if value not in (*ON, *DOWN) and not value.startswith("$"):  # which may be either
            raise FrameworkError(
                f"{self.spelled(name)} = {shown(self.settings[name])} must be true or false"
            )
        return value not in DOWN

    def word(self, name: str, default: str, known: Sequence[str]) -> str:
        """The text of a setting that is one of some words; a FrameworkError says which."""
        value = self.text(name, default)
        if value not in (default, *known):
            raise FrameworkError(
                f"{self.spelled(name)} = {shown(value)} is none of {', '.join(known)}{_hint(value)}"
            )
        return value

    def number(self, name: str, default: int = 0, *, least: int = 0, most: int = MOST) -> int:
        """A setting that counts something; a FrameworkError says that it is no whole number, or
        out of range."""
        value = int(self._number(name, default, "a whole number"))
        if not least <= value <= most:
            bound = f"at least {least}" if value < least else f"at most {most:,}"
            raise FrameworkError(f"{self.spelled(name)} = {value} must be {bound}")
        return value

    def numbers(self, name: str) -> list[int]:
        """The whole numbers of a setting that is a list of them; a FrameworkError names one that
        is out of range."""
        text = self.text(name)
        words = re.findall(r"-?\d+", text)
        if text and not _NUMBERS.fullmatch(text):
            raise FrameworkError(f"{self.spelled(name)} = {shown(text)} must be whole numbers")
        if wrong := [word for word in words if len(word) > DIGITS]:
            raise FrameworkError(
                f"{self.spelled(name)} = {shown(wrong[0])} must be at most {MOST:,}"
            )
        return [int(word) for word in words]

    def real(self, name: str, default: float, *, least: float = -MOST, most: float = MOST) -> float:
        """A setting that is any number of a range."""
        value = self._number(name, default, "a number")
        if not least <= value <= most:
            raise FrameworkError(
                f"{self.spelled(name)} = {value:g} must be from {least:g} to {most:g}"
            )
        return value

    def _number(self, name: str, default: float, kind: str) -> float:
        text = self.text(name, str(default))
        try:
            value = float(text.replace("_", ""))
        except ValueError:
            value = float("nan")
        whole = kind == "a number" or value == value // 1
        if not (whole and abs(value) <= MOST):
            hint = _hint(text)
            error = NotSaidError if hint else FrameworkError
            raise error(f"{self.spelled(name)} = {shown(text)} must be {kind}{hint}")
        return value

    def spelled(self, name: str) -> str:
        """A setting's name as its framework writes it."""
        if name in self.names:
            return self.names[name]
        own = name.isupper() or name.startswith("$")
        return name if own else f"{self.table.get('prefix', '')}{name}"

    def differs(self, name: str, why: str) -> None:
        """Say that a setting is not carried, and what simgpt assumes."""
        self.changes.append(Remark(self.spelled(name), self.settings.get(name, ""), why))

    def refuse(self, name: str, why: str) -> None:
        """Say that a setting is beyond what simgpt models."""
        self.refused.append(Remark(self.spelled(name), self.settings.get(name, ""), why))

    def without(self, pattern: str) -> None:
        """Say of all settings whose names match that they are without effect here."""
        for name in [name for name in self.settings if fnmatchcase(name, pattern)]:
            if name not in self._read:
                self._read.add(name)
                self.without_effect.append(Remark(self.spelled(name), self.settings[name], ""))

    def leave_switched_off(self) -> None:
        """Sort what belongs to a switch that is off: it is without effect."""
        for name in switched_off(self.table.get("belonging", ()), self.settings):
            self.without_effect.append(Remark(self.spelled(name), self.settings.pop(name), ""))

    def read_simple(self) -> None:
        """Read the settings that are one field each."""
        for field, name in self.table.get("numbers", {}).items():
            if self.text(name):
                least = int(field not in MAY_BE_NONE)
                most = MOST_OF_FIELDS.get(field, MOST_OF_PLANS)
                self.fields[field] = self.number(name, least=least, most=most)
        for name, fields in self.table.get("switches", {}).items():
            if self.switch(name):
                self.fields |= fields
        for name, words in self.table.get("words", {}).items():
            self._read_word(name, words)

    def _read_word(self, name: str, words: Mapping[str, Any]) -> None:
        text, values = self.text(name), {**words["values"], **words.get("forks", {})}
        if text and text not in values:
            self.refuse(name, f"simgpt knows {', '.join(values)}")
        elif text:
            self.fields[words["field"]] = values[text]

    def sort_rest(self) -> None:
        """Sort the settings that were not read: refused, changing the step, or without effect."""
        for name in self.settings:
            if name not in self._read:
                self._sort(name)

    def _sort(self, name: str) -> None:
        value = self.settings[name]
        remark = Remark(self.spelled(name), value, "")
        off = value.lower() in OFF
        for kind, found in (("refused", self.refused), ("changes", self.changes)):
            why = self.table.get(kind, {}).get(name)
            if why is None:
                why = self.table.get(kind, {}).get("above_one", {}).get(name)
                off |= why is not None and value == "1"
            if why is not None and not off:
                found.append(Remark(remark.name, value, why))
                return
            if why is not None:
                break
        else:
            if not off and not self._is_without_effect(name):
                why = f"not known here: left out{self._nearest(name)}"
                self.unknown.append(remark.name)
                self.changes.append(Remark(remark.name, value, why))
                return
        self.without_effect.append(remark)

    def _nearest(self, name: str) -> str:
        """The known name that an unknown one resembles, in the middle of a sentence."""
        if name in self.names or name != name.lower() or name.startswith("$"):
            return ""
        if len(self.unknown) >= MOST_NEAREST:
            return ""
        tables = (self.table.get(kind, {}) for kind in ("refused", "changes"))
        known = {*self._read, *chain.from_iterable(tables), *self.table["without_effect"]}
        known = {each for each in known if each == each.lower() and "*" not in each}
        found = difflib.get_close_matches(name, sorted(known), 1, LIKE)
        return f"; nearest: {self.spelled(found[0])}" if found else ""

    def matters(self, name: str) -> bool:
        """Whether a name may bear on a step, as far as the framework's table tells."""
        return not self._is_without_effect(name)

    def _is_without_effect(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.table["without_effect"])


def text_of(value: Any) -> str:
    """A setting's value as text: lists with blanks between, null as nothing.

    >>> text_of([True, 4, None])
    'true 4 '

    True and False are one word however a file spells them.
    """
    if isinstance(value, list | tuple):
        return " ".join(map(text_of, value))
    if value is None:
        return ""
    text = str(value)
    return text.lower() if text.lower() in ("true", "false") else text


def flattened(document: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested tables by their dotted names.

    >>> dict(flattened({"model": {"layers": 2}, "seed": 1}))
    {'model.layers': 2, 'seed': 1}
    """
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _hint(whole: str) -> str:
    """How to say what a file leaves to its surroundings, or does not say at all."""
    text = whole[:HINTED]
    if found := _REFERENCE.search(text):
        return f"; {found[0]} leads to no value in the file"
    if resolvers := [name for name in _RESOLVER.findall(text) if name != "oc.env"]:
        return (
            f"; what {resolvers[-1]} resolves is not read: write the value into a copy of the file"
        )
    if found := _VARIABLE.search(text):
        return f"; the file does not say {found[1]}: give --define {found[1]}=VALUE"
    if re.search(r"\$\d", text):
        return "; it is an argument of the script: write the value into a copy of the script"
    if "$(" in text:
        return (
            "; it is what a command prints, and no command is run: write the value into a copy of "
            "the script"
        )
    return ""
