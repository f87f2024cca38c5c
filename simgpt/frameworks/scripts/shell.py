"""The words that a shell script gives to a training program. Nothing is executed.

What people's scripts consist of is read: assignments of texts and arrays, continued lines,
comments, variables with their defaults, sums of whole numbers, and `if` with a comparison of texts
or numbers. A condition that cannot be told counts as false, a loop's or a function's lines are read
once, a variable that the script does not set stays `$NAME`, and what another command would print is
`$(...)`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from simgpt.frameworks.reading import FrameworkError
from simgpt.frameworks.scripts.expansion import (
    COMMAND,
    MOST_CHARACTERS,
    expanded,
    text_budget,
)
from simgpt.frameworks.scripts.statements import statements
from topologies.files.budget import Budget
from topologies.files.printable import shown
from topologies.files.reading import MOST_DEPTH

ASSIGNMENT = re.compile(
    r"(?:(?:export|declare|local|readonly|typeset)\s+(?:-\w+\s+)*)?"
    r"([A-Za-z_]\w*)(\+?)=(?!=)(.*)",
    re.DOTALL,
)
_ELSES = re.compile(r"(?:else\b\s*)++")
_OPENS = re.compile(r"(if|elif|case)\b\s*(.*)", re.DOTALL)
_WITHIN = re.compile(r"^(?:then|do|\{|time)\s+")
DECLARATIONS = ("export", "declare", "local", "readonly", "typeset")
SHELL_SETUP = ("activate", "conda.sh", ".bashrc", ".profile", ".bash_profile", "profile", "bash")
_GIVEN = re.compile(r"\$[1-9]")  # to the script, by who starts it
LONGEST_PATTERN = 1_000  # of a comparison: brackets without an end take the square of it
_NUMBERS = {"-eq": "==", "-ne": "!=", "-gt": ">", "-lt": "<", "-ge": ">=", "-le": "<="}


@dataclass(frozen=True, slots=True)
class Launch:
    """The words after a training program's name, and those before it; `left_out` are conditions
    that could not be told, so that what depends on them is left out, `sourced` files that the
    script takes in, `commands` the words of all that it starts. Without arguments the script starts
    nothing that is known."""

    arguments: tuple[str, ...]
    launcher: tuple[str, ...]
    variables: Mapping[str, str]
    left_out: tuple[str, ...]
    sourced: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()


@dataclass
class _Script:
    """What is known after a line of a script."""

    variables: dict[str, str]
    budget: Budget = field(default_factory=text_budget)
    commands: list[list[str]] = field(default_factory=list)
    left_out: dict[str, None] = field(default_factory=dict)
    branches: list[str] = field(default_factory=list)  # of each open if: "on", "off" or "done"
    untold: list[str] = field(default_factory=list)  # their conditions, if they cannot be told

    def run(self, statement: str) -> None:
        """Take in one statement."""
        statement = _WITHIN.sub("", statement)
        if not self._follows_branches(statement):
            return
        if {"off", "done"} & set(self.branches):
            if "--" in statement or ASSIGNMENT.fullmatch(statement):
                self.left_out |= dict.fromkeys(filter(None, self.untold))
            return
        found = ASSIGNMENT.fullmatch(statement)
        if found and self._is_one_word(found[3]):
            self._assign(found[1], found[3], adds=bool(found[2]))
            return
        command = split(self._expanded(statement))
        several = [ASSIGNMENT.fullmatch(word) for word in _without_declaration(command)]
        if several and all(several):
            self.variables |= {each[1]: each[3] for each in several if each}
        elif command:
            self.commands.append(command)

    def _expanded(self, text: str) -> str:
        return expanded(text, self.variables, self.budget)

    def _is_one_word(self, value: str) -> bool:
        """Whether the text after a name's `=` is its value alone: `A=1 program` starts a
        program."""
        return value.startswith("(") or len(split(expanded(value, _Ones(), self.budget))) <= 1

    def _follows_branches(self, statement: str) -> bool:
        """Keep track of if and case; whether the statement says something else."""
        self.budget.charge(len(statement))
        found = _OPENS.fullmatch(statement)
        if found and found[1] == "elif" and self.branches:
            before = self.branches.pop()
            self.branches.append(self._branch(found[2]) if before == "off" else "done")
            return False
        if found and found[1] != "elif":
            self.untold.append("" if found[1] == "if" else " ".join(statement.split()[:3]))
            self.branches.append(self._branch(found[2]) if found[1] == "if" else "done")
            if len(self.branches) > MOST_DEPTH:
                raise FrameworkError(f"the script's conditions nest more than {MOST_DEPTH} deep")
            return False
        if (elses := _ELSES.match(statement)) and self.branches:
            self.branches[-1] = "on" if self.branches[-1] == "off" else "done"
            self.run(statement[elses.end() :])
            return False
        if re.match(r"(fi|esac)\b", statement) and self.branches:
            self.branches.pop()
            self.untold.pop()
            return False
        return True

    def _branch(self, condition: str) -> str:
        if {"off", "done"} & set(self.branches):
            return "off"
        told = _told(self._expanded(condition))
        if told is None:
            self.untold[-1] = f"if {condition.strip()}"
        return "on" if told else "off"

    def _assign(self, name: str, text: str, *, adds: bool) -> None:
        if text.startswith("("):
            text = text.strip()[1:-1]
            value = self._expanded(text)
        else:
            value = " ".join(split(self._expanded(text), whole=True))
            if COMMAND in value and "--" not in value:
                self.budget.charge(value.count(COMMAND) * len(name))
                value = value.replace(COMMAND, f"$({name})")  # by which --define can give it
            elif _GIVEN.fullmatch(value):
                value = f"$({name})"
        before = self.variables.get(name, "") if adds else ""
        self.budget.charge(len(before) + len(value))
        value = before + (" " if text and before else "") + value
        if len(value) > MOST_CHARACTERS:
            raise FrameworkError(
                f"the script's variable {shown(name)} exceeds {MOST_CHARACTERS:,} characters"
            )
        self.variables[name] = value


def read_script(
    text: str,
    given: Mapping[str, str],
    before: Mapping[str, str] | None = None,
    known: Callable[[Sequence[str]], int] = lambda words: 0,
) -> Launch:
    """What a script gives to the training program that it starts, or, where it starts none, what
    its variables hold; `given` are variables that the surroundings set, whatever the script says,
    `before` those that scripts before it have set. Of several programs it is the one of whose words
    most are `known`, and of those the last."""
    script = _Script({**(before or {}), **given})
    for statement in statements(text):
        script.run(statement)
        script.variables |= given
    launches = [words for words in script.commands if _program(words) is not None]
    flat = [_flat(words) for words in launches]
    telling = [words for words in flat if any(word.startswith("--") for word in words)]
    if telling:
        words = max(reversed(telling), key=known)
        at = _program(words)
        assert at is not None
        arguments, launcher = words[at + 1 :], words[:at]
    else:
        own = {
            key: each for key, each in script.variables.items() if each != (before or {}).get(key)
        }
        fragments = [value for value in own.values() if "--" in value]
        loose = [word for each in script.commands for word in each if each[0].startswith("--")]
        arguments = _flat([word for text in fragments for word in split(text)] + loose)
        launcher = []
    if not any(word.startswith("--") for word in arguments):
        arguments = []
    left_out, sourced = tuple(script.left_out), tuple(_sourced(script.commands))
    commands = tuple(tuple(_words(each)) for each in script.commands)
    return Launch(tuple(arguments), tuple(launcher), script.variables, left_out, sourced, commands)


def _sourced(commands: Sequence[list[str]]) -> Iterator[str]:
    """The files that `source` or `.` takes in, but for those that only set up a shell."""
    for words in commands:
        if words[0] in ("source", ".") and len(words) > 1:
            name = words[1].rpartition("/")[2]
            if name not in SHELL_SETUP:
                yield name if "$" in words[1] else words[1]


def _without_declaration(words: list[str]) -> list[str]:
    """A statement's words after `export` and such."""
    return words[1:] if words and words[0] in DECLARATIONS else words


def split(text: str, *, whole: bool = False) -> list[str]:
    """A statement's words without their quotes; with `whole` white space parts none of them.

    >>> split("a 'b c' --d=4")
    ['a', 'b c', '--d=4']
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    lexer.whitespace = "" if whole else " \t\n"
    try:
        return list(lexer)
    except ValueError:  # a quote without its partner: as it stands
        return [text] if whole else text.split()


class _Ones(dict[str, str]):
    """Variables that are all 1: what is put in for them parts no words."""

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> str:
        return "1"

    def get(self, name: str, default: object = None) -> str:
        """1, whatever the name."""
        return "1"


def _program(words: list[str]) -> int | None:
    """Where a command's Python file or module stands, if it names one."""
    flat = _flat(words)
    files = [index for index, word in enumerate(flat) if word.endswith(".py")]
    return files[-1] if files else None


def _flat(words: list[str]) -> list[str]:
    """The words, those that hold several options split again."""
    return list(_flattened(words))


def _flattened(words: list[str]) -> Iterator[str]:
    for word in words:
        if re.search(r"\s", word) and re.search(r"(^|\s)-|\.py\s", word):
            yield from split(word)
        else:
            yield word


def _words(command: list[str]) -> Iterator[str]:
    """A command's words, those that hold a command of their own split too."""
    for word in command:
        yield from split(word) if re.search(r"\s", word) else [word]


def _matches(text: str, condition: str) -> bool | None:
    """Whether a text is what stands on the right of a comparison: a pattern, but for what is quoted
    there (Bash Reference Manual, 3.2.5.2); None where the pattern is not read."""
    right = condition.strip().removesuffix("]]").split("=", 1)[1].lstrip("= ").strip()
    if len(right) > LONGEST_PATTERN:
        return None
    if re.search(r"[@?*+!]\(", right):
        return None  # extglob
    parts = re.findall(r"'[^']*'|\"[^\"]*\"|\\.|.", right, re.DOTALL)
    quoted = {part for part in parts if len(part) > 1}
    pattern = "".join(
        re.sub(r"([*?\[])", r"[\1]", part[1:].removesuffix(part[0])) if part in quoted else part
        for part in parts
    )
    unset = text.startswith("$")
    return fnmatchcase("" if unset else text, pattern.replace("[^", "[!"))


def _compared(condition: str) -> str:
    """What stands between the brackets of a comparison, or nothing where there are none."""
    for count in (2, 1):
        inner = condition[count:-count]
        if condition.startswith("[" * count) and condition.endswith("]" * count):
            return inner.strip() if inner[:1].isspace() and inner[-1:].isspace() else ""
    return ""


def _told(condition: str) -> bool | None:
    """What a comparison says, or None where it cannot be told."""
    words = split(_compared(condition.strip()))
    if len(words) == 1 and words[0] in ("-n", "-z"):
        words.append("")
    if len(words) == 2 and words[0] in ("-n", "-z"):
        unset = words[1].startswith("$") or not words[1]
        return unset == (words[0] == "-z")
    if len(words) != 3 or any("$(" in word for word in words):
        return None
    left, sign, right = words
    if sign in ("==", "=", "!="):
        same = _matches(left, condition) if condition.strip().startswith("[[") else left == right
        return None if same is None else same == (sign != "!=")
    if sign in _NUMBERS and left.isdecimal() and right.isdecimal():
        one, other = int(left[:18]), int(right[:18])
        order = {"==": one == other, ">": one > other, "<": one < other}
        order |= {"!=": one != other, ">=": one >= other, "<=": one <= other}
        return order[_NUMBERS[sign]]
    return None
