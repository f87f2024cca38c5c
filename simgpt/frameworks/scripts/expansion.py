"""Variables and sums in a shell script's text, put in without a shell.

All text that is gone through or put in is charged to the budget of the file beforehand.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

from simgpt.frameworks.reading import MOST, FrameworkError
from topologies.files.budget import Budget

MOST_CHARACTERS = 2**16
MOST_EXPANDED = 2**20  # characters of all texts of a file: about a second
EACH = 16  # characters that a text takes beside its own, so that many short ones are bounded too
COMMAND = "$(...)"  # what a command would print
DEEPEST = 16
_BRACED = re.compile(r"([A-Za-z_]\w*|\d+|[@*#?])(?:\[[^]]*\])?(?:(:?[-=+?])(.*))?", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*#?]")
_WORD = re.compile(r"[A-Za-z_]\w*")
_SPECIAL = re.compile(r"[\\$`']")  # a letter that may begin something to expand
LONGEST_SUM = 200
_SUMS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def text_budget(noun: str = "the script") -> Budget:
    """What the texts of a script may take, or of another file with variables."""
    return Budget(noun, "characters of expanded text", MOST_EXPANDED, FrameworkError)


def expanded(text: str, variables: Mapping[str, str], budget: Budget, depth: int = 0) -> str:
    """The text with the values of its variables; those that are not set stay as `$NAME`.

    >>> expanded("${TP:-4} $((2*$N)) $M", {"N": "3"}, text_budget())
    '4 6 $M'
    """
    if depth > DEEPEST:
        raise FrameworkError(f"the script nests variables more than {DEEPEST} deep")
    budget.charge(EACH + len(text))
    parts: list[str] = []
    at = size = told = 0
    quoted = False  # by double quotes, at `told`
    while at < len(text):
        quoted ^= text.count('"', told, at) % 2 == 1
        told = at
        part, at = _next(text, at, variables, budget, depth, quoted=quoted)
        parts.append(part)
        size += len(part)
        budget.charge(len(part))
        if size > MOST_CHARACTERS:
            raise FrameworkError(f"a line of the script exceeds {MOST_CHARACTERS:,} characters")
    return "".join(parts)


def _next(
    text: str,
    at: int,
    variables: Mapping[str, str],
    budget: Budget,
    depth: int,
    *,
    quoted: bool,
) -> tuple[str, int]:
    """What stands at a place of the text, expanded, and where it ends."""
    letter, rest = text[at], text[at + 1 : at + 2]
    if letter == "`":
        end = text.find("`", at + 1)
        return COMMAND, (end if end >= 0 else len(text)) + 1
    if letter == "\\" and rest:
        return text[at : at + 2], at + 2
    if letter == "'" and not quoted and (end := text.find("'", at + 1)) >= 0:
        return text[at : end + 1], end + 1
    if letter != "$" or not rest:
        plain = _SPECIAL.search(text, at + 1)
        end = plain.start() if plain else len(text)
        return text[at:end], end
    if rest == "(":
        end = _closing(text, at + 1, "(", ")")
        inner = text[at + 2 : end]
        if inner.startswith("(") and inner.endswith(")"):
            terms = expanded(inner[1:-1], variables, budget, depth + 1)
            return _summed(terms, variables, budget), end + 1
        return COMMAND, end + 1
    if rest == "{":
        end = _closing(text, at + 1, "{", "}")
        return _braced(text[at + 2 : end], variables, budget, depth + 1), end + 1
    found = _NAME.match(text, at + 1)
    if not found:
        return "$", at + 1
    return _value(found[0], variables), found.end()


def _closing(text: str, start: int, opens: str, closes: str) -> int:
    """Where the bracket at `start` is closed."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == opens) - (text[index] == closes)
        if depth == 0:
            return index
    return len(text)


def _value(name: str, variables: Mapping[str, str]) -> str:
    return variables.get(name, f"${name}")


def _braced(inner: str, variables: Mapping[str, str], budget: Budget, depth: int) -> str:
    """What stands for `${...}`."""
    found = _BRACED.fullmatch(inner)
    if not found:
        return COMMAND
    name, sign, default = found[1], found[2] or "", found[3] or ""
    if sign.endswith(("-", "=")) and not variables.get(name):
        value = expanded(default, variables, budget, depth).strip("\"'")
        if sign.endswith("=") and isinstance(variables, dict):
            variables[name] = value
        return value
    if sign.endswith("+"):
        return expanded(default, variables, budget, depth) if variables.get(name) else ""
    return _value(name, variables)


def _summed(text: str, variables: Mapping[str, str], budget: Budget) -> str:
    """The value of `$((...))`, or `$(...)` where it is no sum of whole numbers; with a variable
    whose value is not known it stays a sum, which names the variable."""
    names = _WORD.findall(text)
    budget.charge(sum(len(variables.get(name, "")) for name in names))
    if any(variables.get(name, "$").startswith("$") for name in names):
        known = _WORD.sub(lambda found: variables.get(found[0], found[0]), text)
        return f"$(({''.join(known.split())}))"
    terms = _WORD.sub(lambda found: variables[found[0]], text).strip()
    if len(terms) > LONGEST_SUM:
        return COMMAND
    try:
        return str(_sum(ast.parse(terms, mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return COMMAND


def _sum(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= MOST:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
        found = _SUMS[type(node.op)](_sum(node.left), _sum(node.right))
        if abs(found) <= MOST:
            return found
    raise ValueError
