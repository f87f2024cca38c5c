"""Variables of a script, and the expansion of words. No command is run.

What is not known stays in a text as a mark of its own, so that nothing that is built on it is taken
for known: a variable that nobody sets, an argument of the script, what a command prints. `rendered`
writes marks as the script does, `$NAME`; what is computed of them has brackets, `$(NAME)`.

All text that is gone through or put in is charged to the budget of the file beforehand.
Source: Bash Reference Manual, 3.5.3 (Shell Parameter Expansion) and 3.5.7 (Word Splitting).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from simgpt.frameworks.reading import FrameworkError
from simgpt.frameworks.scripts.braces import braced, numbers
from simgpt.frameworks.scripts.sums import NoSumError, Sum
from simgpt.frameworks.scripts.syntax import parsed
from simgpt.frameworks.scripts.tree import Assignment, Command, Part, Word
from simgpt.frameworks.scripts.words import BEGINS, ENDS, plain_word, quoted_word
from topologies.files.budget import Budget
from topologies.files.printable import shown

MOST_CHARACTERS = 2**16
MOST_EXPANDED = 2**20  # characters of all texts of a file: about a second
EACH = 16  # characters that a text takes beside its own, so that many short ones are bounded too
DEEPEST = 16
LONGEST_PATTERN = 1_000  # of a pattern, and of what it is compared with
COMMAND = "(...)"  # what a command would print
MARK = re.compile(f"{BEGINS}([^{ENDS}]*){ENDS}")
NAME = re.compile(r"[A-Za-z_]\w*")
_BRACED = re.compile(r"([!#]?)([A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[([^]]*)\])?(.*)", re.DOTALL)
_DEFAULT = re.compile(r"(:?)([-=+?])(.*)", re.DOTALL)
_AFFIX = re.compile(r"(##?|%%?)(.*)", re.DOTALL)
_REPLACED = re.compile(r"/([/#%]?)((?<=//)/(?:\\.|[^/\\])*|(?:\\.|[^/\\])*)(?:/(.*))?", re.DOTALL)
_SLICED = re.compile(r":([^:]+)(?::(.*))?", re.DOTALL)
_CASES: Mapping[str, Callable[[str], str]] = {
    "^^": str.upper,
    ",,": str.lower,
    "^": lambda text: text[:1].upper() + text[1:],
    ",": lambda text: text[:1].lower() + text[1:],
}
_MARK_OR_NAME = re.compile(f"{MARK.pattern}|{NAME.pattern}")
_SPECIAL = re.compile(r"([*?\[\]])")
_EXTENDED = re.compile(r"[@?*+!]\(")
Value = str | dict[str, str]  # an array's values by its indices


def text_budget(noun: str = "the script") -> Budget:
    """What the texts of a script may take, or of another file with variables."""
    return Budget(noun, "characters of expanded text", MOST_EXPANDED, FrameworkError)


def unknown(label: str) -> str:
    """The mark of what is not known."""
    return f"{BEGINS}{label}{ENDS}"


def rendered(text: str) -> str:
    """A text with its marks as a script has them.

    >>> rendered("--tp " + unknown("TP"))
    '--tp $TP'
    """
    return text.replace(BEGINS, "$").replace(ENDS, "")


def joined(value: Value) -> str:
    """A variable's value as one text, an array's with blanks between."""
    return value if isinstance(value, str) else " ".join(value.values())


def expanded(text: str, variables: Mapping[str, Value], budget: Budget) -> str:
    """The text, as in double quotes, with the values of its variables; those that are not set stay
    as `$NAME`.

    >>> expanded("${TP:-4} $((2*$N)) $M", {"N": "3"}, text_budget())
    '4 6 $M'
    """
    return rendered(Variables(dict(variables), budget=budget).text(quoted_word(text)))


ALL = unknown("@")  # of the script's arguments


@dataclass
class Variables:
    """Values by name. Those that are `given` no script changes; `arguments` are the script's or a
    function's (None: not known); `tables` the arrays whose indices are texts; `forms` what
    `declare` makes of values: numbers (i), capitals (u) or small letters (l)."""

    values: dict[str, Value]
    given: Mapping[str, Value] = field(default_factory=dict)
    budget: Budget = field(default_factory=text_budget)
    arguments: tuple[str, ...] | None = None
    tables: set[str] = field(default_factory=set)
    forms: dict[str, str] = field(default_factory=dict)
    ignores_case: bool = False  # of patterns
    depth: int = 0

    def fields(self, word: Word) -> list[str]:
        """The words that a word becomes: those of its braces, of which unquoted values are split
        at blanks."""
        return [text for each in braced(word, self.budget) for text in self._split(each)]

    def _split(self, word: Word) -> list[str]:
        found: list[str] = []
        current: str | None = None
        for part in word:
            texts = self._texts(part)
            if part.quoted or part.kind == "text":
                for at, text in enumerate(texts):
                    if at and current is not None:
                        found.append(current)
                        current = None
                    current = (current or "") + text
                continue
            for blank, text in self._blanks_and_words(" ".join(texts)):
                if text:
                    current = (current or "") + text
                elif blank and current is not None:
                    found.append(current)
                    current = None
        found += [] if current is None else [current]
        for text in found:
            self._check_size(text)
        return found

    def _blanks_and_words(self, text: str) -> list[tuple[str, str]]:
        """What parts words, and what is between, in pairs of which one is empty."""
        parts = joined(self.values.get("IFS", " \t\n"))
        if not parts:
            return [("", text)]
        inner = re.escape(parts)
        return re.findall(f"([{inner}]+)|([^{inner}]+)", text)

    def text(self, word: Word) -> str:
        """A word's text, which is not split."""
        found = "".join(" ".join(self._texts(part)) for part in word)
        self._check_size(found)
        return found

    def pattern(self, word: Word) -> str | None:
        """A word as a pattern, in which what is quoted stands for itself; None where it has
        alternatives in brackets, which are not read."""
        found = ""
        for part in word:
            text = " ".join(self._texts(part))
            found += _SPECIAL.sub(r"[\1]", text) if part.quoted else text.replace("[^", "[!")
        plain = "".join(part.text for part in word if not part.quoted)
        return None if _EXTENDED.search(plain) or len(found) > LONGEST_PATTERN else found

    def assign(self, assignment: Assignment) -> None:
        """Take in an assignment, unless its variable is given."""
        name, adds = assignment.name, assignment.adds
        if name in self.given:
            return
        before = self.values.get(name, "") if adds or assignment.index is not None else ""
        if assignment.pairs is not None or assignment.index is not None:
            pairs = assignment.pairs
            if pairs is None:
                pairs = ((assignment.index, assignment.value),)
            value: Value = self._elements(name, before, pairs, adds=adds)
        else:
            text = self.text(assignment.value)
            text = text.replace(unknown(name), "") if text != unknown(name) else text
            if self.forms.get(name) == "i" and before:
                value = f"{joined(before)}+({text})"
            elif isinstance(before, dict):
                value = {**before, "0": before.get("0", "") + text}
            else:
                value = before + text
        self.set(name, value)

    def set(self, name: str, value: Value) -> None:
        """Set a variable, unless it is given. What a command prints, or is an argument of the
        script, is known by the variable's name from here on."""
        if name in self.given:
            return
        own = unknown(f"({name})")
        if isinstance(value, dict):
            value = {index: _named(text, own) for index, text in value.items()}
        else:
            value = _named(self._formed(name, value), own)
        size = len(joined(value))
        self.budget.charge(EACH + size)
        if size > MOST_CHARACTERS:
            raise FrameworkError(
                f"the script's variable {shown(name)} exceeds {MOST_CHARACTERS:,} characters"
            )
        self.values[name] = value

    def _formed(self, name: str, text: str) -> str:
        """A value as its variable is declared."""
        form = self.forms.get(name)
        if form == "i":
            return self.sum(text) if text else "0"
        return text.upper() if form == "u" else text.lower() if form == "l" else text

    def unset(self, word: str) -> None:
        """Forget a variable, or an element of an array, unless it is given."""
        name, element, index = word.removesuffix("]").partition("[")
        value = self.values.get(name)
        if name in self.given:
            return
        if element and isinstance(value, dict):
            gone = self._index(name, index)
            self.values[name] = {key: each for key, each in value.items() if key != gone}
        elif not element:
            self.values.pop(name, None)
            self.forms.pop(name, None)

    def _elements(
        self, name: str, before: Value, pairs: Sequence[tuple[str | None, Word]], *, adds: bool
    ) -> dict[str, str]:
        """An array with further elements."""
        found = {"0": before} if before and isinstance(before, str) else dict(before or {})
        following = 1 + max((int(key) for key in found if key.isdecimal()), default=-1)
        for index, word in pairs:
            if index is not None:
                key = self._index(name, index)
                text = self.text(word)
                found[key] = found.get(key, "") + text if adds else text
                following = int(key) + 1 if key.isdecimal() else following
                continue
            for text in self.fields(word):
                found[str(following)] = text
                following += 1
        if all(map(str.isdecimal, found)):
            found = dict(sorted(found.items(), key=lambda pair: int(pair[0])))
        return found

    def _index(self, name: str, index: str) -> str:
        """The key of an array's element."""
        text = self.text(plain_word(index))
        value = self.values.get(name)
        if name in self.tables or (isinstance(value, dict) and text in value):
            return text
        try:
            return str(self.number(text))
        except NoSumError:
            return text

    def _check_size(self, text: str) -> None:
        self.budget.charge(EACH + len(text))
        if len(text) > MOST_CHARACTERS:
            raise FrameworkError(f"a line of the script exceeds {MOST_CHARACTERS:,} characters")

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self.depth += 1
        if self.depth > DEEPEST:
            raise FrameworkError(f"the script nests variables more than {DEEPEST} deep")
        try:
            yield
        finally:
            self.depth -= 1

    def _texts(self, part: Part) -> list[str]:
        """What a part of a word stands for: one text, or those of an array."""
        if part.kind == "text":
            return [part.text]
        self.budget.charge(EACH + len(part.text))
        with self._deeper():
            if part.kind == "sum":
                return [self.sum(part.text)]
            if part.kind == "command":
                return [self._printed(part.text)]
            return self._braced(part.text, quoted=part.quoted)

    def _braced(self, inner: str, *, quoted: bool) -> list[str]:
        """What `${inner}` stands for."""
        found = _BRACED.fullmatch(inner)
        if not found:
            return [unknown(COMMAND)]
        sign, name, index, rest = found[1], found[2], found[3], found[4]
        texts = self._looked_up(name, index)
        several = name in "@*" or index in ("@", "*")
        if sign == "#" and not rest:
            return [self._length(texts, several=several)]
        if sign == "!":
            return self._indirect(name, index, texts)
        if default := _DEFAULT.fullmatch(rest):
            unset = texts is None or (bool(default[1]) and not "".join(texts))
            return self._defaulted(name, index, default, texts, unset=unset)
        if texts is None:
            texts = [unknown(name)]
        if several and (sliced := _SLICED.fullmatch(rest)):
            texts, rest = self._sliced(["", *texts] if name in "@*" else texts, sliced), ""
        if quoted and "*" in (name, index):
            texts = [joined(self.values.get("IFS", " "))[:1].join(texts)]
        return [self._changed(text, rest) for text in texts] if rest else texts

    def _looked_up(self, name: str, index: str | None) -> list[str] | None:
        """The values of a variable or an argument; None where it is not set."""
        if name in "@*":
            return None if self.arguments is None else list(self.arguments)
        known = self.arguments
        if name == "#":
            return None if known is None or ALL in known else [str(len(known))]
        if name.isdecimal() and name != "0":
            at = int(name[:6]) - 1
            known = None if ALL in (known or ())[: at + 1] else known
            return None if known is None else [known[at]] if at < len(known) else [""]
        if not NAME.fullmatch(name):
            return [unknown(f"({name})")]
        value = self.values.get(name)
        if value is None:
            return None
        if index in ("@", "*"):
            return list(value.values()) if isinstance(value, dict) else [value]
        key = "0" if index is None else self._index(name, index)
        texts = value if isinstance(value, dict) else {"0": value}
        if MARK.search(key):
            return [unknown(f"({name})")]
        if key == "-1" and texts:
            key = list(texts)[-1]
        return [texts[key]] if key in texts else [""]

    def _length(self, texts: list[str] | None, *, several: bool) -> str:
        if texts is None or any(map(MARK.search, texts)):
            return unknown(COMMAND)
        return str(len(texts) if several else len(texts[0]))

    def _indirect(self, name: str, index: str | None, texts: list[str] | None) -> list[str]:
        """`${!A[@]}`, the indices of an array; `${!A}`, the variable that A names."""
        value = self.values.get(name)
        if index in ("@", "*"):
            return list(value) if isinstance(value, dict) else ["0"] if value else []
        if not texts or not NAME.fullmatch(texts[0]):
            return [unknown(COMMAND)]
        found = self._looked_up(texts[0], None)
        return [unknown(texts[0])] if found is None else found

    def _defaulted(
        self,
        name: str,
        index: str | None,
        default: re.Match[str],
        texts: list[str] | None,
        *,
        unset: bool,
    ) -> list[str]:
        """`${A:-x}` and its like."""
        sign = default[2]
        if sign == "+":
            return [] if unset else [self.text(plain_word(default[3]))]
        if not unset:
            return texts or []
        if sign == "?":
            return [unknown(name)]
        text = self.text(plain_word(default[3]))
        if sign == "=" and NAME.fullmatch(name) and index is None:
            self.set(name, text)
        return [text]

    def _changed(self, text: str, rest: str) -> str:
        """A value after what follows its name in braces: a part cut off, replaced, in capitals."""
        if MARK.search(text):
            return unknown(COMMAND)
        if rest in _CASES:
            return _CASES[rest](text)
        if affix := _AFFIX.fullmatch(rest):
            return self._cut(text, affix[1], affix[2])
        if replaced := _REPLACED.fullmatch(rest):
            return self._replaced(text, replaced)
        if sliced := _SLICED.fullmatch(rest):
            return "".join(self._sliced(list(text), sliced))
        return unknown(COMMAND)

    def _sliced(self, items: list[str], found: re.Match[str]) -> list[str]:
        """Letters of a value or elements of an array from a place on, so many of them."""
        try:
            start = self.number(found[1])
            length = self.number(found[2]) if found[2] else len(items)
        except NoSumError:
            return [unknown(COMMAND)]
        start = max(start + len(items), 0) if start < 0 else start
        return items[start : start + length] if length >= 0 else items[start:length]

    def _cut(self, text: str, sign: str, operand: str) -> str:
        """A text without the shortest or the longest part at its begin or end that matches."""
        pattern = self.pattern(plain_word(operand))
        if pattern is None or MARK.search(pattern) or len(text) > LONGEST_PATTERN:
            return unknown(COMMAND)
        self.budget.charge(len(text) * len(pattern))
        front, sizes = sign[0] == "#", range(len(text) + 1)
        for size in reversed(sizes) if len(sign) == 2 else sizes:
            part = text[:size] if front else text[len(text) - size :]
            if fnmatchcase(part, pattern):
                return text[size:] if front else text[: len(text) - size]
        return text

    def _replaced(self, text: str, found: re.Match[str]) -> str:
        """A text with what matches replaced; a pattern that is no constant is not searched for."""
        pattern = self.pattern(plain_word(found[2]))
        new = self.text(plain_word(found[3] or ""))
        if pattern is None or MARK.search(pattern) or _SPECIAL.search(pattern):
            return unknown(COMMAND)
        if not pattern and found[1] not in ("#", "%"):
            return text
        if found[1] == "#":
            return new + text[len(pattern) :] if text.startswith(pattern) else text
        if found[1] == "%":
            return text.removesuffix(pattern) + new if text.endswith(pattern) else text
        self.budget.charge(len(text) + text.count(pattern) * len(new))
        return text.replace(pattern, new, -1 if found[1] == "/" else 1)

    def _printed(self, source: str) -> str:
        """What a command prints, where it is an echo, a sequence or a sum of known words."""
        body = parsed(source)
        command = body[0] if len(body) == 1 else None
        if not isinstance(command, Command) or command.assignments:
            return unknown(COMMAND)
        words = [text for word in command.words for text in self.fields(word)]
        if words[:1] == ["echo"] and (len(words) < 2 or not words[1].startswith("-")):
            return " ".join(words[1:])
        if words[:1] == ["expr"]:
            return self.sum(" ".join(words[1:]))
        if words[:1] == ["seq"] and 2 <= len(words) <= 4 and all(map(_is_whole, words[1:])):
            return " ".join(_range(words[1:]))
        return unknown(COMMAND)

    def number(self, text: str, unset: Callable[[str], int] | None = None) -> int:
        """The value of a sum; a NoSumError where it has none. `unset` says what a variable that is
        not set counts as."""
        plain = self.text(quoted_word(text))
        if unset is not None:
            plain = MARK.sub(lambda found: str(unset(found[1])), plain)
        return Sum(plain, lambda name: self._numbered(name, unset), self._write).value()

    def _write(self, name: str, value: int) -> None:
        name, _, index = name.partition("[")
        word = (Part("text", str(value), quoted=True),)
        self.assign(Assignment(name, index[:-1] or None, False, word))

    def _numbered(self, name: str, unset: Callable[[str], int] | None) -> int:
        texts = self._looked_up(*name.removesuffix("]").split("[", 1)) if "[" in name else None
        texts = texts if "[" in name else self._looked_up(name, None)
        text = unknown(name) if texts is None else texts[0]
        if (mark := MARK.fullmatch(text)) and unset is not None:
            return unset(mark[1])
        if not text:
            return 0
        with self._deeper():
            return self.number(text, unset)

    def sum(self, text: str) -> str:
        """The value of `$((text))`, or its mark: with a variable that is not known the sum of what
        is."""
        try:
            return str(self.number(text))
        except NoSumError:
            pass
        unset = False

        def put_in(found: re.Match[str]) -> str:
            nonlocal unset
            value = None if found[0].startswith(BEGINS) else self.values.get(found[0])
            unset |= value is None
            text = found[0] if value is None else joined(value)
            self.budget.charge(len(text))
            return text

        with_values = _MARK_OR_NAME.sub(put_in, self.text(quoted_word(text)))
        if unset or MARK.search(with_values):
            return unknown(f"(({''.join(rendered(with_values).split())}))")
        return unknown(COMMAND)


def _named(text: str, own: str) -> str:
    """A value, in which what no name stands for has the variable's own mark."""
    if "--" in text:
        return text
    return MARK.sub(
        lambda found: found[0] if NAME.match(found[1]) or _is_sum(found[1]) else own, text
    )


def _is_sum(marked: str) -> bool:
    return marked.startswith("((")


def _is_whole(text: str) -> bool:
    return re.fullmatch(r"-?\d{1,9}", text) is not None


def _range(words: Sequence[str]) -> list[str]:
    """The numbers that `seq [FIRST [STEP]] LAST` prints: none where the step is 0."""
    given = [int(word) for word in words]
    first, last = given[0] if len(given) > 1 else 1, given[-1]
    step = given[1] if len(given) > 2 else 1
    return [str(number) for number in numbers(first, step, last)] if step else []
