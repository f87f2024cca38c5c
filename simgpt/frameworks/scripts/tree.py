"""A bash script as a tree: commands, conditions and loops, made of words.

What stands in `$(...)`, `$((...))` and `${...}` is kept as text.
"""

from __future__ import annotations

import re

from topologies.records import record

DECLARATIONS = ("export", "declare", "local", "readonly", "typeset")


@record
class Part:
    """A piece of a word: its `text`, or what stands between the brackets of an expansion, of the
    kind `variable`, `command` or `sum`."""

    kind: str
    text: str
    quoted: bool = False


Word = tuple[Part, ...]
Body = tuple["Node", ...]


@record
class Assignment:
    """`NAME[index]=value`, or of an array pairs of an index (None: the next one) and a word."""

    name: str
    index: str | None
    adds: bool
    value: Word = ()
    pairs: tuple[tuple[str | None, Word], ...] | None = None


@record
class Command:
    """A simple command. Those of DECLARATIONS have assignments behind their words."""

    text: str
    words: tuple[Word, ...] = ()
    assignments: tuple[Assignment, ...] = ()

    @property
    def name(self) -> str:
        """The command's name, as it is written."""
        return "".join(part.text for part in self.words[0]) if self.words else ""

    @property
    def tested(self) -> tuple[Word, ...] | None:
        """The words of `test` and `[ ]`; None of another command."""
        if self.name == "test":
            return self.words[1:]
        last = "".join(part.text for part in self.words[-1]) if self.words else ""
        return self.words[1:-1] if (self.name, last) == ("[", "]") else None


@record
class Test:
    """`[[ words ]]`."""

    text: str
    words: tuple[Word, ...]


@record
class Sum:
    """`((text))`."""

    text: str


@record
class Group:
    """Commands in braces, or in brackets, whose variables are their own."""

    body: Body
    alone: bool = False


@record
class Pipeline:
    """Commands that feed each other, or one that is negated."""

    commands: Body
    negated: bool = False


@record
class Chain:
    """Commands that depend on those before them: each with the `&&` or `||` before it, and its
    text from there."""

    links: tuple[tuple[str, Node, str], ...]


@record
class Branch:
    """One condition with what depends on it, both with their text."""

    text: str
    condition: Body
    body: Body
    body_text: str


@record
class If:
    """Branches, of which the first whose condition holds is taken; `else` has none."""

    branches: tuple[Branch, ...]


@record
class Item:
    """Patterns of a case, what depends on them, and how it ends: `;;`, `;&` or `;;&`."""

    patterns: tuple[Word, ...]
    body: Body
    body_text: str
    end: str


@record
class Case:
    """`case word in items esac`."""

    text: str
    word: Word
    items: tuple[Item, ...]


@record
class For:
    """`for name in words`; None: over the arguments."""

    text: str
    name: str
    words: tuple[Word, ...] | None
    body: Body


@record
class While:
    """A loop while, or `until`, a condition holds; a `for` of sums has its `start` and `step`."""

    text: str
    condition: Body
    body: Body
    body_text: str
    until: bool = False
    start: str = ""
    step: str = ""


@record
class Function:
    """A function's name and body."""

    name: str
    body: Body


@record
class Unread:
    """A line that is no bash."""

    text: str


Node = Command | Test | Sum | Group | Pipeline | Chain | If | Case | For | While | Function | Unread
ASKS = re.compile(r"[ef]?grep|which|command|type|hash|cmp|diff|pgrep|ls|lspci|nvidia-smi")


def asks(node: Node) -> bool:
    """Whether a command is started for its status."""
    if isinstance(node, Pipeline):
        return asks(node.commands[-1])
    return isinstance(node, Command) and ASKS.fullmatch(node.name) is not None


def is_test(node: Node) -> bool:
    """Whether a node only tests something, and starts nothing."""
    if isinstance(node, Pipeline) and len(node.commands) == 1:
        return is_test(node.commands[0])
    if isinstance(node, Group) and len(node.body) == 1:
        return is_test(node.body[0])
    if isinstance(node, Chain):
        return all(is_test(link) for _, link, _ in node.links)
    is_words = isinstance(node, Command) and node.tested is not None
    return is_words or isinstance(node, Test | Sum)
