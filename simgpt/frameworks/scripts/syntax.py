"""The tree of a bash script, by recursive descent over its text: each letter is looked at once per
level of nesting. Source: Bash Reference Manual, 3.2 (Shell Commands).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from simgpt.frameworks.reading import FrameworkError
from simgpt.frameworks.scripts.tree import (
    DECLARATIONS,
    Assignment,
    Body,
    Branch,
    Case,
    Chain,
    Command,
    For,
    Function,
    Group,
    If,
    Item,
    Node,
    Part,
    Pipeline,
    Sum,
    Test,
    Unread,
    While,
    Word,
)
from simgpt.frameworks.scripts.words import PLACEHOLDER, BashError, Words
from topologies.files.printable import shown
from topologies.files.reading import MOST_DEPTH

MOST_UNREAD = 10  # places that are no bash, and are left out line by line
_BLANKS = re.compile(r"(?:[ \t\r]|\\\r?\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_AHEAD = re.compile(r"[^\s;|&()<>]+|\(\(|\(")
_REDIRECTION = re.compile(r"(?:\d*|\{\w+\})(<<<|<<-?|<>|>>|>\||[<>]&|[<>](?!\())|(&>>?)")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^]\n]*)\])?(\+?)=")
_ELEMENT = re.compile(r"\[([^]\n]*)\]=")
_FUNCTION = re.compile(r"(?:function\s+([\w.:+-]+)\s*(?:\(\s*\))?|([\w.:+-]+)\s*\(\s*\))\s*")
_SPACED_PLACEHOLDER = re.compile(r"<[A-Za-z][^<>\n|;&]*>")
_REGULAR = re.compile(r"(?:\\.|\"[^\"]*\"|'[^']*'|\([^()]*\)|[^\s()\"'])+")
_SEPARATOR = re.compile(r";;?&?|&(?!&)|\n|\)")
_ENDS = {"then", "elif", "else", "fi", "do", "done", "esac", "}"}


def parsed(text: str) -> Body:
    """The tree of a script. A line that is no bash is an `Unread`; a FrameworkError refuses one
    with many, or nested too deep."""
    parser = _Parser(text.replace("\r\n", "\n"))
    try:
        return parser.script()
    except RecursionError:
        raise FrameworkError(f"the script nests more than {MOST_DEPTH} deep") from None


@dataclass
class _Parser(Words):
    """The text, how deep it nests at the place, and documents that begin at the line's end: their
    closing words, and whether tabs may stand before these."""

    depth: int = 0
    documents: list[tuple[str, bool]] = field(default_factory=list)

    def script(self) -> Body:
        """All statements, with those lines that are no bash."""
        found: list[Node] = []
        unread = 0
        while self._space(lines=True) or self.at < len(self.text):
            start = self.at
            try:
                found.append(self._statement())
            except BashError:
                self.depth, unread = 0, unread + 1
                end = self.text.find("\n", start)
                self.at = end if end >= 0 else len(self.text)
                line = self.text[start : self.at]
                if unread > MOST_UNREAD:
                    number = self.text.count("\n", 0, start) + 1
                    why = f"line {number} of the script is not bash: {shown(line)}"
                    raise FrameworkError(why) from None
                found.append(Unread(line.strip()))
        return tuple(found)

    def _space(self, *, lines: bool = False) -> bool:
        """Skip blanks and comments, with `lines` their ends too; whether something is left."""
        while self.at < len(self.text):
            if found := _BLANKS.match(self.text, self.at):
                self.at = found.end()
            elif self.text[self.at] == "#" and self.text[self.at - 1 : self.at] in "\n \t;&|()":
                found = _COMMENT.match(self.text, self.at)
                self.at = found.end() if found else self.at
            elif lines and self.text[self.at] == "\n":
                self._line()
            else:
                return True
        return False

    def _line(self) -> None:
        """Skip a line's end, and the documents that begin there."""
        self.at += 1
        for name, tabs in self.documents:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = end if end >= 0 else len(self.text)
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                if (line.lstrip("\t") if tabs else line).rstrip("\r") == name:
                    break
        self.documents = []

    def _statement(self) -> Node:
        """The commands up to what parts statements; with `&` their variables are their own."""
        node = self._chain()
        self._space()
        found = _SEPARATOR.match(self.text, self.at)
        if self.at < len(self.text) and not found:
            raise BashError
        if found and found[0] in (";", "&"):
            self.at = found.end()
        return Group((node,), alone=True) if found and found[0] == "&" else node

    def _ahead(self) -> str:
        """The word ahead, as it is written."""
        found = _AHEAD.match(self.text, self.at)
        return found[0] if found else ""

    def _takes(self, *words: str) -> str:
        """Skip one of these words, if it is ahead."""
        self._space(lines=True)
        word = self._ahead()
        if word not in words:
            return ""
        self.at += len(word)
        return word

    def _expect(self, *words: str) -> str:
        if word := self._takes(*words):
            return word
        raise BashError

    def _body(self, *, closing: str = "") -> tuple[Body, str]:
        """Statements up to a word that ends them, and their text."""
        found: list[Node] = []
        self._space(lines=True)
        start = self.at
        while self._space(lines=True):
            if self._ahead() in _ENDS or self.text.startswith(
                (closing or ";;", ";;", ";&"), self.at
            ):
                break
            found.append(self._statement())
        return tuple(found), self.text[start : self.at]

    def _chain(self) -> Node:
        start = self.at
        links = [("", self._pipeline(), self.text[start : self.at])]
        while self._space() and self.text[self.at : self.at + 2] in ("&&", "||"):
            sign = self.text[self.at : self.at + 2]
            self.at += 2
            self._space(lines=True)
            begin = self.at
            links.append((sign, self._pipeline(), self.text[begin : self.at].strip()))
        return links[0][1] if len(links) == 1 else Chain(tuple(links))

    def _pipeline(self) -> Node:
        self._space(lines=True)
        negated = False
        while (word := self._ahead()) in ("!", "time"):
            negated ^= word == "!"
            self.at += len(word)
            self._space()
            if word == "time" and self._ahead() == "-p":
                self.at += 2
                self._space()
        found = [self._command()]
        while self._space() and re.match(r"\|&?(?!\|)", self.text[self.at : self.at + 2]):
            self.at += 1 + (self.text[self.at + 1 : self.at + 2] == "&")
            self._space(lines=True)
            found.append(self._command())
        return found[0] if len(found) == 1 and not negated else Pipeline(tuple(found), negated)

    def _command(self) -> Node:
        word, start = self._ahead(), self.at
        readers: dict[str, Callable[[int], Node]] = {
            "if": self._if,
            "case": self._case,
            "for": self._for,
            "select": self._for,
            "while": self._while,
            "until": self._while,
            "{": self._group,
            "(": self._group,
            "((": self._sum,
            "[[": self._test,
        }
        found = _FUNCTION.match(self.text, self.at)
        if word not in readers and not (found and word not in _ENDS):
            return self._simple()
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise FrameworkError(f"the script's conditions nest more than {MOST_DEPTH} deep")
        if found and word not in readers:
            self.at = found.end()
            node = self._function(found[1] or found[2])
        else:
            self.at += len(word)
            node = readers[word](start)
        self.depth -= 1
        while self._space() and _REDIRECTION.match(self.text, self.at):
            self._redirection()
        return node

    def _function(self, name: str) -> Node:
        self._space(lines=True)
        body = self._command()
        return Function(name, body.body if isinstance(body, Group) and not body.alone else (body,))

    def _if(self, start: int) -> If:
        branches: list[Branch] = []
        word = "if"
        while word in ("if", "elif"):
            condition, text = self._body()
            self._expect("then")
            body, body_text = self._body()
            branches.append(Branch(f"if {_line_of(text)}", condition, body, body_text))
            word = self._expect("elif", "else", "fi")
        if word == "else":
            body, body_text = self._body()
            branches.append(Branch("else", (), body, body_text))
            self._expect("fi")
        return If(tuple(branches))

    def _case(self, start: int) -> Case:
        self._space()
        word = self.word()
        self._expect("in")
        text = self.text[start : self.at]
        items: list[Item] = []
        while not self._takes("esac"):
            self._space(lines=True)
            self.at += self.text.startswith("(", self.at)
            patterns = [self._pattern()]
            while self._space() and self.text.startswith("|", self.at):
                self.at += 1
                patterns.append(self._pattern())
            if not self.text.startswith(")", self.at):
                raise BashError
            self.at += 1
            body, body_text = self._body()
            end = re.compile(r";;&|;;|;&|").match(self.text, self.at)
            assert end is not None
            self.at = end.end()
            items.append(Item(tuple(patterns), body, body_text, end[0]))
        return Case(_line_of(text), word, tuple(items))

    def _pattern(self) -> Word:
        self._space()
        if not (word := self.word()):
            raise BashError
        return word

    def _for(self, start: int) -> For | While:
        self._space()
        if self.text.startswith("((", self.at):
            end = self._closing(self.at, "(")
            parts = self.text[self.at + 2 : end - 1].split(";")
            if len(parts) != 3:
                raise BashError
            self.at = end + 1
            text = self.text[start : self.at]
            body, body_text = self._loop_body()
            condition = (Sum(parts[1].strip() or "1"),)
            return While(text, condition, body, body_text, start=parts[0], step=parts[2])
        name = self._ahead()
        self.at += len(name)
        words: list[Word] | None = None
        if self._takes("in"):
            words = []
            while self._space() and self.text[self.at] not in ";\n&":
                words.append(self._pattern())
        text = self.text[start : self.at]
        body, _ = self._loop_body()
        return For(_line_of(text), name, None if words is None else tuple(words), body)

    def _while(self, start: int) -> While:
        until = self.text.startswith("until", start)
        condition, _ = self._body()
        text = self.text[start : self.at]
        body, body_text = self._loop_body()
        return While(_line_of(text), condition, body, body_text, until)

    def _loop_body(self) -> tuple[Body, str]:
        self._space(lines=True)
        if self.text.startswith(";", self.at):
            self.at += 1
        word = self._expect("do", "{")
        found = self._body()
        self._expect("done" if word == "do" else "}")
        return found

    def _group(self, start: int) -> Group:
        alone = self.text[start] == "("
        body, _ = self._body(closing=")" if alone else "")
        if not self.text.startswith(")" if alone else "}", self.at):
            raise BashError
        self.at += 1
        return Group(body, alone)

    def _sum(self, start: int) -> Node:
        end = self._closing(start, "(")
        if self.text[end - 1] != ")" or self._closing(start + 1, "(") != end - 1:
            self.at = start + 1
            return self._group(start)
        self.at = end + 1
        return Sum(self.text[start + 2 : end - 1])

    def _test(self, start: int) -> Test:
        words: list[Word] = []
        while self._space(lines=True):
            if found := re.compile(r"\]\](?=[\s;&|)]|$)").match(self.text, self.at):
                self.at = found.end()
                return Test(self.text[start : self.at], tuple(words))
            if words and words[-1] == (Part("text", "=~"),):
                found = _REGULAR.match(self.text, self.at)
            else:
                found = re.compile(r"&&|\|\||[()<>]").match(self.text, self.at)
            if found:
                words.append((Part("text", found[0]),))
                self.at = found.end()
            elif word := self.word():
                words.append(word)
            else:
                break
        raise BashError

    def _simple(self) -> Command:
        start = self.at
        words: list[Word] = []
        assignments: list[Assignment] = []
        declares = False
        while self._space() and self.text[self.at] not in "\n;|)":
            if _REDIRECTION.match(self.text, self.at) and not PLACEHOLDER.match(self.text, self.at):
                self._redirection()
            elif self.text[self.at] == "&":
                break
            elif (declares or not words) and (found := _ASSIGNMENT.match(self.text, self.at)):
                assignments.append(self._assignment(found))
            elif word := self.word():
                words.append(word)
                declares |= len(words) == 1 and word[0].text in DECLARATIONS
            else:
                raise BashError
        text = self.text[start : self.at].strip()
        if not text or (not assignments and text in _ENDS):
            raise BashError
        return Command(text, tuple(words), tuple(assignments))

    def _redirection(self) -> None:
        found = _REDIRECTION.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        self._space()
        word = self.word()
        if found[1] in ("<<", "<<-"):
            self.documents.append(("".join(part.text for part in word), found[1] == "<<-"))

    def _assignment(self, found: re.Match[str]) -> Assignment:
        self.at = found.end()
        if not self.text.startswith("(", self.at):
            value = self._placeholder() or self.word()
            return Assignment(found[1], found[2], bool(found[3]), value)
        self.at += 1
        pairs: list[tuple[str | None, Word]] = []
        while self._space(lines=True) and self.text[self.at] != ")":
            index = _ELEMENT.match(self.text, self.at)
            self.at = index.end() if index else self.at
            word = self.word()
            if not word and not index:
                raise BashError
            pairs.append((index[1] if index else None, word))
        if self.at >= len(self.text):
            raise BashError
        self.at += 1
        return Assignment(found[1], found[2], bool(found[3]), pairs=tuple(pairs))

    def _placeholder(self) -> Word:
        found = _SPACED_PLACEHOLDER.match(self.text, self.at)
        if not found:
            return ()
        self.at = found.end()
        return (Part("text", found[0], quoted=True),)


def _line_of(text: str) -> str:
    """A condition's text as one line."""
    return " ".join(text.split()).rstrip("; ")
