"""Values of the evaluator: Python's own literals and containers, and the classes here.

A `Thing` is an object of which some attributes are known: those that the recipe set. What the
evaluator cannot find out is a `Thing` too, with the place where that became so, since a recipe goes
on to set attributes of it (the model that a checkpoint describes, with the recipe's plan).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from topologies.errors import SimgptError
from topologies.records import record


class RecipeError(SimgptError):
    """A recipe that cannot be evaluated; exit status 2."""


class RaisedError(Exception):
    """An exception that the recipe's own code raises."""


class TooMuchError(RecipeError):
    """A recipe that needs more steps, calls or values than the evaluator does."""


@record
class Place:
    """A line of a file of the checkout."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(eq=False, slots=True)
class Thing:
    """An object; `label` is what messages call it, `kind` has the names of its class from the
    outermost in ("Trainer", "Config"). `why` says at which place it could not be told what it is
    ("" where it can). Of a configuration of a call `of` is what is called. An
    attribute that was read before anything had set it is the `default_of` a class, by its names
    and the attribute's."""

    label: str
    place: Place
    fields: dict[str, Any] = field(default_factory=dict)
    cls: Class | None = None
    why: str = ""
    of: Any = None
    kind: tuple[str, ...] = ()
    default_of: tuple[str, ...] = ()

    @property
    def is_config(self) -> bool:
        """Whether it says how to call `of`, as nemo_run's Config and Partial do."""
        return self.of is not None

    @property
    def is_unknown(self) -> bool:
        """Whether it may be any value at all, None included."""
        return bool(self.why)


@dataclass(eq=False, slots=True)
class Module:
    """A module of the checkout, with the names that its body bound."""

    name: str
    file: str
    variables: dict[str, Any] = field(default_factory=dict)


@record
class External:
    """A name of a module that is not in the checkout, as torch.bfloat16."""

    name: str

    @property
    def last(self) -> str:
        """Its last part."""
        return self.name.rpartition(".")[2]


@record
class Imported:
    """A name that an import binds, looked up when it is used; without `name` the module."""

    module: str
    name: str


@dataclass(eq=False, slots=True)
class Scope:
    """Names of a function's call, within those of the module."""

    module: Module
    variables: dict[str, Any]
    outer: Scope | None = None


@dataclass(eq=False, slots=True)
class Function:
    """A function or a lambda of the checkout; `bound` is the object or class of a method."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    bound: Any = None
    is_bound: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return "lambda" if isinstance(self.node, ast.Lambda) else self.node.name


@dataclass(eq=False, slots=True)
class Class:
    """A class of the checkout: what its body defines, and its bases."""

    name: str
    node: ast.ClassDef
    scope: Scope
    bases: tuple[Any, ...]
    is_enum: bool = False

    def definition(self, name: str) -> ast.stmt | None:
        """The last statement of the body that binds a name."""
        found: ast.stmt | None = None
        for each in self.node.body:
            if _binds(each, name):
                found = each
        return found


def _binds(node: ast.stmt, name: str) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name == name
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.target.id == name
    if isinstance(node, ast.Assign):
        return any(isinstance(each, ast.Name) and each.id == name for each in node.targets)
    return False


@record
class Builtin:
    """A function that the evaluator knows: it takes the place, arguments and keywords."""

    name: str
    call: Callable[[Place, list[Any], dict[str, Any]], Any]


@record
class FilePath:
    """A path within the checkout, as pathlib has it."""

    text: str


@dataclass(eq=False, slots=True)
class Table:
    """A table of a CSV file: rows with cells by the names of columns."""

    rows: list[dict[str, Any]]


@dataclass(eq=False, slots=True)
class Column:
    """A column of a table, or what holds for each row."""

    cells: list[Any]


@record
class FieldSpec:
    """A field of a dataclass that `field(...)` describes."""

    keywords: dict[str, Any]


def unknown(what: str, place: Place) -> Thing:
    """A value that cannot be told."""
    return Thing(what, place, why=f"{what} ({place})")


def is_literal(value: Any) -> bool:
    """Whether a value and all in it are Python's own."""
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_literal, value))
    if isinstance(value, dict):
        return all(map(is_literal, value.keys())) and all(map(is_literal, value.values()))
    return value is None or isinstance(value, bool | int | float | str | External)


def truth(value: Any) -> bool | None:
    """Whether a value counts as true; None where that cannot be told."""
    if isinstance(value, Thing):
        return None if value.is_unknown else True
    if (
        isinstance(value, list | tuple | dict | set | frozenset | str | int | float)
        or value is None
    ):
        return bool(value)
    return True
