"""A shell script, interpreted; no program is started.

Assignments, conditions, loops, functions and `eval` change variables, and the words of each command
that would be started are kept. Unknown values are marks in the texts that contain them
(variables.py). An unknown condition counts as false; it is listed with its text if settings depend
on it, as is a condition on an unset variable. Each command, iteration and expansion is charged to
the script's budget, so every loop ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import assert_never

from simgpt.frameworks.reading import FrameworkError
from simgpt.frameworks.scripts.conditions import Conditions, both, either, negated
from simgpt.frameworks.scripts.sums import NoSumError
from simgpt.frameworks.scripts.syntax import parsed
from simgpt.frameworks.scripts.tree import (
    DECLARATIONS,
    Assignment,
    Body,
    Case,
    Chain,
    Command,
    For,
    Function,
    Group,
    If,
    Node,
    Pipeline,
    Sum,
    Test,
    Unread,
    While,
    asks,
    is_test,
)
from simgpt.frameworks.scripts.variables import (
    ALL,
    EACH,
    NAME,
    Value,
    Variables,
    rendered,
    unknown,
)
from topologies.files.reading import MOST_DEPTH

UNTOLD = "it cannot be told here, so what depends on it is left out"
NOT_BASH = "the line is not valid bash, so it is left out"
NOT_SET = "{name} is not set here and counts as empty; --define {name}=VALUE sets it"
MOST_TURNS = 1_000
_SETTINGS = re.compile(r"--|\w(?:\[[^]]*\])?\+?=")
_SHELLS = re.compile(r"(?:.*/)?(?:ba|z|k|da)?sh")
_OF_TEXT = re.compile(r"-[a-z]*c")


class Leave(Exception):
    """`exit`, `return`, `break` or `continue`, with the word behind it."""

    def __init__(self, kind: str, word: str = "") -> None:
        super().__init__(kind, word)
        self.kind, self.word = kind, word

    @property
    def status(self) -> bool | None:
        """What `return` says; None where it is not known."""
        return int(self.word) == 0 if self.word.isdecimal() else None


@dataclass
class Script:
    """What is known after a command of a script. `is_launch` tells whether words
    start a training program; `prefix` are the words that start a shell whose
    commands are run; `sure` says that no condition around depends on what nobody sets."""

    variables: Variables
    is_launch: Callable[[Sequence[str]], bool]
    commands: list[list[str]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    functions: dict[str, Body] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    frames: list[dict[str, Value | None]] = field(default_factory=list)
    prefix: list[str] = field(default_factory=list)
    sure: bool = True
    nested: int = 0
    loops: int = 0

    def run(self, body: Body) -> bool | None:
        """The status of the last of these commands; None if it is unknown."""
        status: bool | None = True
        for node in body:
            status = self.one(node)
        return status

    def one(self, node: Node) -> bool | None:
        """Run one command, or what is made of several; its status."""
        self.variables.budget.charge(EACH)
        if isinstance(node, Command):
            return self._command(node)
        if isinstance(node, Test | Sum):
            return self._told(node, Conditions(self.variables))
        if isinstance(node, Chain):
            return self._chain(node)
        if isinstance(node, Pipeline):
            return self._pipeline(node)
        if isinstance(node, Group):
            return self._apart(node.body) if node.alone else self.run(node.body)
        if isinstance(node, If):
            return self._if(node)
        if isinstance(node, Case):
            return self._case(node)
        if isinstance(node, For):
            return self._for(node)
        if isinstance(node, While):
            return self._while(node)
        if isinstance(node, Function):
            self.functions[node.name] = node.body
            return True
        if isinstance(node, Unread):
            if _SETTINGS.search(node.text):
                self.left_out[rendered(node.text)] = NOT_BASH
            return None
        assert_never(node)

    def _apart(self, body: Body) -> bool | None:
        """Run commands whose variables are their own."""
        kept = dict(self.variables.values)
        self.variables.budget.charge(len(kept))
        try:
            return self.run(body)
        except Leave as leave:
            return bool(leave.kind == "exit")
        finally:
            self.variables.values = kept

    def _pipeline(self, node: Pipeline) -> bool | None:
        several = len(node.commands) > 1
        for command in node.commands:
            status = self._apart((command,)) if several else self.one(command)
        return negated(status) if node.negated else status

    def _told(self, node: Node, conditions: Conditions) -> bool | None:
        """What a condition says: of a test that of its words, of another command its status."""
        if isinstance(node, Test):
            return conditions.test(node)
        if isinstance(node, Sum):
            return conditions.sum(node.text)
        if isinstance(node, Pipeline) and len(node.commands) == 1:
            told = self._told(node.commands[0], conditions)
            return negated(told) if node.negated else told
        if isinstance(node, Group) and len(node.body) == 1:
            return self._told(node.body[0], conditions)
        if isinstance(node, Chain):
            told = self._told(node.links[0][1], conditions)
            for sign, link, _ in node.links[1:]:
                if told is not (sign == "||"):
                    join = both if sign == "&&" else either
                    told = join(told, self._told(link, conditions))
            return told
        if isinstance(node, Command) and (words := node.tested) is not None:
            return conditions.words(words)
        return self.one(node)

    def _depends(self, text: str, told: bool | None, conditions: Conditions, *bodies: str) -> None:
        """List a condition that settings depend on, which are left out, and which cannot be told
        or depends on a variable that nobody sets."""
        if any(map(_SETTINGS.search, bodies)):
            if told is None:
                self.left_out[rendered(text)] = UNTOLD
            elif conditions.unset:
                why = NOT_SET.format(name=next(iter(conditions.unset)))
                self.left_out.setdefault(rendered(text), why)

    def _within(self, body: Body, told: bool | None, conditions: Conditions) -> bool | None:
        """Run what depends on a condition."""
        before = self.sure
        self.sure = before and told is not None and not conditions.unset
        try:
            return self.run(body)
        finally:
            self.sure = before

    def _chain(self, node: Chain) -> bool | None:
        """Commands with `&&` and `||`. One that is started counts as one that succeeds, unless it
        asks something (tree.py). What follows a status that cannot be told is left out, but for a
        training program behind such a question."""
        conditions = Conditions(self.variables)
        told: bool | None = True
        before = asked = ""
        for sign, link, text in node.links:
            tests = is_test(link)
            is_asked = told is None and before == asked and self._is_launch(link)
            if not sign or told is (sign == "&&") or is_asked:
                told = self._status(link, told, conditions)
            elif told is None and tests:
                join = both if sign == "&&" else either
                told = join(told, self._told(link, conditions))
            else:
                self._depends(before, told, conditions, text)
            if tests or asks(link):
                before = f"{before} {sign} {text}".strip()
                asked = asked if tests else before
        return told

    def _status(self, node: Node, before: bool | None, conditions: Conditions) -> bool | None:
        """Run a command of a chain; its status."""
        if is_test(node):
            return self._told(node, conditions)
        found = self._within((node,), before, conditions)
        return True if found is None and not asks(node) else found

    def _is_launch(self, node: Node) -> bool:
        """Whether a command starts a training program."""
        if isinstance(node, Pipeline):
            return any(map(self._is_launch, node.commands))
        texts = (
            [self.variables.text(word) for word in node.words] if isinstance(node, Command) else []
        )
        return self.is_launch(texts)

    def _if(self, node: If) -> bool | None:
        conditions = Conditions(self.variables)
        skipped: list[tuple[str, bool | None, str]] = []
        for at, branch in enumerate(node.branches):
            told: bool | None = True
            if branch.condition:
                self.run(branch.condition[:-1])
                told = self._told(branch.condition[-1], conditions)
            if told:
                others = [each.body_text for each in node.branches[at + 1 :]]
                self._depends(branch.text, told, conditions, *others)
                for text, before, body_text in skipped:
                    self._depends(text, before, conditions, body_text)
                is_told = all(before is not None for _, before, _ in skipped)
                return self._within(branch.body, told if is_told else None, conditions)
            skipped.append((branch.text, told, branch.body_text))
        for text, before, body_text in skipped:
            self._depends(text, before, conditions, body_text)
        return True

    def _case(self, node: Case) -> bool | None:
        conditions = Conditions(self.variables)
        text, status, falls = self.variables.text(node.word), True, False
        for item in node.items:
            told: bool | None = falls
            for pattern in item.patterns:
                told = either(told, conditions.matches(text, pattern))
            if told is None:
                bodies = [each.body_text for each in node.items]
                self._depends(node.text, None, conditions, *bodies)
                return None
            if told:
                self._within(item.body, told, conditions)
                if item.end not in (";&", ";;&"):
                    break
                falls = item.end == ";&"
        return status

    def _for(self, node: For) -> bool | None:
        """Each turn of a loop over words. One that starts programs is a choice of the user's: its
        commands are read once, with a variable that `--define` gives."""
        if node.words is None:
            words = list(self.variables.arguments or (ALL,))
        else:
            words = [text for word in node.words for text in self.variables.fields(word)]
        if node.name in self.variables.given:
            words = words[:1]
        before, values = len(self.commands), dict(self.variables.values)
        self.variables.budget.charge(len(values))
        for at, word in enumerate(words):
            self.variables.set(node.name, word)
            if not self._turn(node.body):
                break
            if not at and len(words) > 1 and any(map(self.is_launch, self.commands[before:])):
                del self.commands[before:]
                self.variables.values = values | {node.name: unknown(node.name)}
                self._turn(node.body)
                break
        return True

    def _turn(self, body: Body) -> bool:
        """Run a loop's body once; whether the loop goes on."""
        self.loops += 1
        try:
            self.run(body)
        except Leave as leave:
            if leave.kind not in ("break", "continue"):
                raise
            levels = int(leave.word) if leave.word.isdecimal() else 1
            if levels > 1 and self.loops > 1:
                raise Leave(leave.kind, str(levels - 1)) from None
            return leave.kind == "continue"
        finally:
            self.loops -= 1
        return True

    def _while(self, node: While) -> bool | None:
        """The turns of a loop, as long as they change something."""
        if node.start:
            self._sum(node.start)
        for _ in range(MOST_TURNS):
            conditions = Conditions(self.variables)
            self.run(node.condition[:-1])
            told = self._told(node.condition[-1], conditions) if node.condition else None
            told = negated(told) if node.until else told
            if not told:
                self._depends(node.text, told, conditions, node.body_text)
                if told is None:
                    self._once(node)
                return True
            before, arguments = dict(self.variables.values), self.variables.arguments
            self.variables.budget.charge(EACH + len(before))
            if not self._turn(node.body):
                return True
            if node.step:
                self._sum(node.step)
            if (before, arguments) == (self.variables.values, self.variables.arguments):
                return True
        raise FrameworkError(
            f"a loop of the script has more than {MOST_TURNS:,} turns: {node.text}"
        )

    def _once(self, node: While) -> None:
        """Run the body of a loop once of which it is not known how often it runs."""
        for name in NAME.findall(node.start)[:1]:
            self.variables.set(name, unknown(name))
        before = self.sure
        self.sure = False
        self._turn(node.body)
        self.sure = before

    def _sum(self, text: str) -> bool:
        try:
            return self.variables.number(text) != 0
        except NoSumError:
            return False

    def _command(self, node: Command) -> bool | None:
        """Start a program, call a function, or do what the shell itself does."""
        tested = node.tested
        if tested is not None:
            return Conditions(self.variables).words(tested)
        words = [text for word in node.words for text in self.variables.fields(word)]
        if words[:1] and words[0] in DECLARATIONS:
            return self._declare(words, node.assignments)
        if not words:
            for assignment in node.assignments:
                self.variables.assign(assignment)
            return True
        builtin = _BUILTINS.get(words[0])
        if builtin is not None:
            return builtin(self, words)
        if words[0] in self.functions:
            return self._call(words)
        at = next((at for at, word in enumerate(words[:-1]) if self._starts_text(words, at)), None)
        if at is not None:
            before = self.prefix
            self.prefix = [*before, *words[: at + 1]]
            try:
                self._nest(words[at + 1], alone=True)
            finally:
                self.prefix = before
            return None
        self.commands.append(self.prefix + words)
        return None

    def _starts_text(self, words: Sequence[str], at: int) -> bool:
        """Whether a word is a shell's option before the text of its commands."""
        if not _OF_TEXT.fullmatch(words[at]):
            return False
        before = next((word for word in reversed(words[:at]) if not word.startswith("-")), "")
        return _SHELLS.fullmatch(before) is not None

    def _nest(self, text: str, *, alone: bool = False) -> bool | None:
        """Run the commands of a text, `alone` with variables of their own."""
        self.variables.budget.charge(EACH + len(text))
        with self._deeper():
            return (self._apart if alone else self.run)(parsed(text))

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self.nested += 1
        if self.nested > MOST_DEPTH:
            raise FrameworkError(f"the script nests more than {MOST_DEPTH} deep")
        try:
            yield
        finally:
            self.nested -= 1

    def _declare(self, words: Sequence[str], assignments: Sequence[Assignment]) -> bool:
        options = "".join(word for word in words[1:] if word.startswith(("-", "+")))
        names = [word for word in words[1:] if NAME.fullmatch(word)]
        local = words[0] == "local" and self.frames
        for name in [*names, *(each.name for each in assignments)]:
            if "A" in options:
                self.variables.tables.add(name)
            if local:
                self.frames[-1].setdefault(name, self.variables.values.get(name))
            for form in "iul":
                if form in options:
                    self.variables.forms[name] = form
        for word in words[1:]:  # of an expansion, as export $A
            name, equals, value = word.partition("=")
            if equals and NAME.fullmatch(name):
                self.variables.set(name, value)
        for assignment in assignments:
            self.variables.assign(assignment)
        return True

    def _call(self, words: Sequence[str]) -> bool | None:
        """Run a function's body with its own arguments and local variables."""
        before, forms = self.variables.arguments, dict(self.variables.forms)
        self.called.add(words[0])
        is_known = ALL not in words
        self.variables.arguments = tuple(words[1:]) if is_known else None
        self.frames.append({})
        try:
            with self._deeper():
                return self.run(self.functions[words[0]])
        except Leave as leave:
            if leave.kind != "return":
                raise
            return leave.status
        finally:
            self.variables.arguments, self.variables.forms = before, forms
            for name, value in self.frames.pop().items():
                self.variables.values.pop(name, None)
                if value is not None:
                    self.variables.values[name] = value

    def _eval(self, words: Sequence[str]) -> bool | None:
        return self._nest(" ".join(words[1:]))

    def _set(self, words: Sequence[str]) -> bool:
        if "--" in words:
            self.variables.arguments = tuple(words[list(words).index("--") + 1 :])
        return True

    def _shift(self, words: Sequence[str]) -> bool:
        count = int(words[1]) if len(words) > 1 and words[1].isdecimal() else 1
        if self.variables.arguments is not None:
            self.variables.arguments = self.variables.arguments[count:]
        return True

    def _unset(self, words: Sequence[str]) -> bool:
        for word in words[1:]:
            self.variables.unset(word)
        return True

    def _shopt(self, words: Sequence[str]) -> bool:
        if "nocasematch" in words and not {"-s", "-u"}.isdisjoint(words):
            self.variables.ignores_case = "-s" in words
        return True

    def _read(self, words: Sequence[str]) -> None:
        """Variables whose values come from elsewhere are not known."""
        for name in words[1:]:
            if NAME.fullmatch(name):
                self.variables.set(name, unknown(f"({name})"))

    def _printf(self, words: Sequence[str]) -> None:
        if words[1:2] == ["-v"]:
            self._read(words[1:3])

    def _let(self, words: Sequence[str]) -> bool:
        return [self._sum(word) for word in words[1:]][-1:] != [False]

    def _leave(self, words: Sequence[str]) -> bool:
        """Leave a loop, a function or the script; not the script where that is not sure, or with
        an error, as it does where a variable is missing."""
        if words[0] == "exit" and (not self.sure or words[1:2] not in ([], ["0"])):
            return True
        raise Leave(*words[:2])


_BUILTINS: Mapping[str, Callable[[Script, Sequence[str]], bool | None]] = {
    ":": lambda script, words: True,
    "true": lambda script, words: True,
    "false": lambda script, words: False,
    "eval": Script._eval,
    "set": Script._set,
    "shift": Script._shift,
    "unset": Script._unset,
    "shopt": Script._shopt,
    **dict.fromkeys(("read", "mapfile", "readarray", "getopts"), Script._read),
    "printf": Script._printf,
    "let": Script._let,
    **dict.fromkeys(("exit", "return", "break", "continue"), Script._leave),
}
