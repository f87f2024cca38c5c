"""Expressions of recipes: one function for each kind of node; any other kind is unknown."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from typing import Any

from simgpt.frameworks.recipe_code.evaluation import Evaluation
from simgpt.frameworks.recipe_code.tables import both, chosen, column_of
from simgpt.frameworks.recipe_code.values import (
    Class,
    Column,
    External,
    FilePath,
    Function,
    Place,
    RaisedError,
    Scope,
    Table,
    Thing,
    TooMuchError,
    is_literal,
    truth,
    unknown,
)

MOST_ITEMS = 10_000  # elements of a container, characters of a text
LARGEST = 2**63
OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}


def place_of(scope: Scope, node: ast.AST) -> Place:
    """Where a node stands."""
    return Place(scope.module.file, getattr(node, "lineno", 0))


def evaluate(ev: Evaluation, node: ast.AST, scope: Scope) -> Any:
    """The value of an expression."""
    ev.step()
    known = _KINDS.get(type(node))
    if known is None:
        return unknown(f"a {type(node).__name__}", place_of(scope, node))
    return known(ev, node, scope)


def _constant(ev: Evaluation, node: ast.Constant, scope: Scope) -> Any:
    value = node.value
    if isinstance(value, str) and len(value) > MOST_ITEMS:
        raise TooMuchError(f"{place_of(scope, node)}: a text of {len(value):,} characters")
    return value


def _name(ev: Evaluation, node: ast.Name, scope: Scope) -> Any:
    return ev.lookup(node.id, scope, place_of(scope, node))


def _attribute(ev: Evaluation, node: ast.Attribute, scope: Scope) -> Any:
    return ev.attribute(evaluate(ev, node.value, scope), node.attr, place_of(scope, node))


def _call(ev: Evaluation, node: ast.Call, scope: Scope) -> Any:
    called = evaluate(ev, node.func, scope)
    given = list(elements(ev, node.args, scope))
    named: dict[str, Any] = {}
    for each in node.keywords:
        value = evaluate(ev, each.value, scope)
        if each.arg is not None:
            named[each.arg] = value
        elif isinstance(value, dict):
            named |= {str(key): item for key, item in value.items()}
        else:
            named["**"] = value
    return ev.call(called, given, named, place_of(scope, node))


def elements(ev: Evaluation, nodes: list[ast.expr], scope: Scope) -> Iterator[Any]:
    """Values of a list of expressions, those behind a star spread."""
    for each in nodes:
        if not isinstance(each, ast.Starred):
            yield evaluate(ev, each, scope)
            continue
        value = evaluate(ev, each.value, scope)
        if isinstance(value, list | tuple | dict | set):
            yield from value
        else:
            yield unknown("elements behind a star", place_of(scope, each))


def _list(ev: Evaluation, node: ast.List, scope: Scope) -> Any:
    return bounded(list(elements(ev, node.elts, scope)), place_of(scope, node))


def _tuple(ev: Evaluation, node: ast.Tuple, scope: Scope) -> Any:
    return bounded(tuple(elements(ev, node.elts, scope)), place_of(scope, node))


def _set(ev: Evaluation, node: ast.Set, scope: Scope) -> Any:
    found = list(elements(ev, node.elts, scope))
    hashable = all(is_literal(each) and not isinstance(each, list | dict) for each in found)
    return set(found) if hashable else unknown("a set", place_of(scope, node))


def _dict(ev: Evaluation, node: ast.Dict, scope: Scope) -> Any:
    found: dict[Any, Any] = {}
    place = place_of(scope, node)
    for key, item in zip(node.keys, node.values, strict=True):
        value = evaluate(ev, item, scope)
        if key is not None:
            name = evaluate(ev, key, scope)
            if not hashable_literal(name):
                return unknown("a dictionary with a key that is not known", place)
            found[name] = value
        elif isinstance(value, dict):
            found |= value
        else:
            return unknown("a dictionary that takes in one which is not known", place)
    return found


def hashable_literal(value: Any) -> bool:
    """Whether a value may be a key."""
    if isinstance(value, tuple):
        return all(map(hashable_literal, value))
    return value is None or isinstance(value, bool | int | float | str | External)


def _text(ev: Evaluation, node: ast.JoinedStr, scope: Scope) -> Any:
    parts = []
    for each in node.values:
        if isinstance(each, ast.FormattedValue):
            value = evaluate(ev, each.value, scope)
            plain = each.format_spec is None and each.conversion in (-1, 115)
            if not plain or not isinstance(value, str | int | float | bool | None):
                return unknown("a text with a value that is not known", place_of(scope, node))
            parts.append(str(value))
        else:
            parts.append(evaluate(ev, each, scope))
    return bounded("".join(map(str, parts)), place_of(scope, node))


def _boolean(ev: Evaluation, node: ast.BoolOp, scope: Scope) -> Any:
    """`and` and `or`: a value decides though others are unknown."""
    ends = isinstance(node.op, ast.Or)
    undecided: Any = None
    for each in node.values:
        value = evaluate(ev, each, scope)
        decided = truth(value)
        if decided is ends:
            return value  # whatever the unknown parts before it are
        if decided is None:
            undecided = undecided or value
    return value if undecided is None else unknown(undecided.label, undecided.place)


def _unary(ev: Evaluation, node: ast.UnaryOp, scope: Scope) -> Any:
    value = evaluate(ev, node.operand, scope)
    if isinstance(node.op, ast.Not):
        decided = truth(value)
        return unknown(value.label, value.place) if decided is None else not decided
    if isinstance(value, int | float):
        return -value if isinstance(node.op, ast.USub) else +value
    return unknown("a sign", place_of(scope, node))


def _binary(ev: Evaluation, node: ast.BinOp, scope: Scope) -> Any:
    left, right = evaluate(ev, node.left, scope), evaluate(ev, node.right, scope)
    return operated(type(node.op), left, right, place_of(scope, node))


def operated(kind: type[ast.AST], left: Any, right: Any, place: Place) -> Any:
    """An operator on two values: numbers, joined texts and lists, merged dictionaries."""
    for each in (left, right):
        if isinstance(each, Thing):
            return unknown(each.label, each.place if each.is_unknown else place)
    if isinstance(left, Column) or isinstance(right, Column):
        mask = both(left, right) if kind is ast.BitAnd else None
        return unknown("a column", place) if mask is None else mask
    if isinstance(left, FilePath) and isinstance(right, str) and kind is ast.Div:
        return FilePath(f"{left.text}/{right}")
    if kind is ast.Mod and isinstance(left, str):
        return unknown("a formatted text", place)
    if kind is ast.Pow and all(isinstance(each, int | float) for each in (left, right)):
        if abs(left) > 1e6 or not 0 <= right <= 64:
            return unknown("a power", place)
        return bounded(left**right, place)
    if kind not in OPERATORS or not (_operand(left) and _operand(right)):
        return unknown("an operator", place)
    if kind is ast.Mult:
        for count, other in ((left, right), (right, left)):
            long = isinstance(other, str | list | tuple) and isinstance(count, int)
            if long and count * len(other) > MOST_ITEMS:
                raise TooMuchError(f"{place}: {count:,} times {len(other):,} elements")
    try:
        return bounded(OPERATORS[kind](left, right), place)
    except (TypeError, ZeroDivisionError, OverflowError, ValueError):
        raise RaisedError(f"{place}: an operator does not take its operands") from None


def _operand(value: Any) -> bool:
    return isinstance(value, int | float | str | list | tuple | dict | set)


def bounded(value: Any, place: Place) -> Any:
    """A value that is not too large; a TooMuchError for others."""
    if isinstance(value, str | list | tuple | dict | set) and len(value) > MOST_ITEMS:
        raise TooMuchError(f"{place}: more than {MOST_ITEMS:,} elements")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise TooMuchError(f"{place}: a number above 2^63")
    return value


def _compare(ev: Evaluation, node: ast.Compare, scope: Scope) -> Any:
    place = place_of(scope, node)
    left = evaluate(ev, node.left, scope)
    undecided = None
    for kind, each in zip(node.ops, node.comparators, strict=True):
        right = evaluate(ev, each, scope)
        found = compared(type(kind), left, right, place)
        if isinstance(found, Column):
            return found if len(node.ops) == 1 else unknown("a chain of comparisons", place)
        if truth(found) is False:
            return False
        undecided = undecided or (found if truth(found) is None else None)
        left = right
    return True if undecided is None else undecided


def compared(kind: type[ast.AST], left: Any, right: Any, place: Place) -> Any:
    """A comparison of two values, unknown where one of them is."""
    if kind in (ast.Is, ast.IsNot):
        decided = _is(left, right)
        if decided is None:
            return _undecided(left, right, place)
        return decided if kind is ast.Is else not decided
    if left is right and kind in (ast.Eq, ast.NotEq):
        return kind is ast.Eq
    if isinstance(left, Column):
        return Column([compared(kind, cell, right, place) for cell in left.cells])
    if kind in (ast.Eq, ast.NotEq) and _are_definitions(left, right):
        return kind is ast.NotEq
    if not is_literal(left) or not is_literal(right):
        if kind in (ast.Eq, ast.NotEq) and _is(left, right) is False and None in (left, right):
            return kind is ast.NotEq
        if kind in (ast.In, ast.NotIn) and is_literal(left) and isinstance(right, dict):
            return (left in right) is (kind is ast.In)
        return _undecided(left, right, place)
    if isinstance(left, External) or isinstance(right, External):
        both = isinstance(left, External) and isinstance(right, External)
        if kind in (ast.Eq, ast.NotEq) and (both or None in (left, right)):
            return (left == right) is (kind is ast.Eq)
        if kind not in (ast.In, ast.NotIn):
            return _undecided(left, right, place)
    try:
        return bool(COMPARISONS[kind](left, right))
    except (TypeError, KeyError):
        raise RaisedError(f"{place}: values cannot be compared") from None


def _are_definitions(left: Any, right: Any) -> bool:
    """Whether both are classes or functions, of which one is of the checkout."""
    own, other = Class | Function, Class | Function | External
    return (isinstance(left, own) and isinstance(right, other)) or (
        isinstance(right, own) and isinstance(left, other)
    )


def _is(left: Any, right: Any) -> bool | None:
    """Whether two values are one object, as far as that can be told."""
    if left is right:
        return True
    if any(isinstance(each, Thing) and each.is_unknown for each in (left, right)):
        return None
    if isinstance(left, External) and isinstance(right, External):
        return left == right
    if isinstance(left, bool) and isinstance(right, bool):
        return left == right
    return False


def _undecided(left: Any, right: Any, place: Place) -> Thing:
    for each in (left, right):
        if isinstance(each, Thing) and each.is_unknown:
            return unknown(each.label, each.place)
    return unknown("a comparison", place)


def _choice(ev: Evaluation, node: ast.IfExp, scope: Scope) -> Any:
    decided = truth(test := evaluate(ev, node.test, scope))
    if decided is None:
        one, other = evaluate(ev, node.body, scope), evaluate(ev, node.orelse, scope)
        if is_literal(one) and is_literal(other) and type(one) is type(other) and one == other:
            return one
        return unknown(test.label, test.place)
    return evaluate(ev, node.body if decided else node.orelse, scope)


def _subscript(ev: Evaluation, node: ast.Subscript, scope: Scope) -> Any:
    value = evaluate(ev, node.value, scope)
    place = place_of(scope, node)
    if isinstance(node.slice, ast.Slice):
        ends = [node.slice.lower, node.slice.upper, node.slice.step]
        bounds = [None if each is None else evaluate(ev, each, scope) for each in ends]
        if isinstance(value, str | list | tuple) and all(
            each is None or isinstance(each, int) for each in bounds
        ):
            return value[slice(*bounds)]
        return unknown("a part", place)
    return item_of(ev, value, evaluate(ev, node.slice, scope), place)


def item_of(ev: Evaluation, value: Any, key: Any, place: Place) -> Any:
    """An element of a container; a RaisedError where it has none of the name."""
    if isinstance(value, External):  # a member of an enumeration, or a type with parameters
        return External(f"{value.name}.{key}") if isinstance(key, str) else value
    if isinstance(value, Thing) and isinstance(key, str):
        return ev.attribute(value, f"[{key}]", place)
    if isinstance(value, Table) and isinstance(key, str):
        return column_of(value, key)
    if isinstance(value, Table) and isinstance(key, Column):
        return chosen(value, key)
    if not hashable_literal(key) or not isinstance(value, str | list | tuple | dict):
        label = key.label if isinstance(key, Thing) else "an element"
        return unknown(label, key.place if isinstance(key, Thing) else place)
    try:
        return value[key]
    except (KeyError, IndexError, TypeError):
        raise RaisedError(f"{place}: there is no element {key!r:.60}") from None


def _lambda(ev: Evaluation, node: ast.Lambda, scope: Scope) -> Any:
    return Function(node, scope)


def _comprehension(ev: Evaluation, node: Any, scope: Scope) -> Any:
    """List, set and dictionary comprehensions and generators over known elements."""
    inner = Scope(scope.module, {}, scope)
    place = place_of(scope, node)
    found: list[Any] = []
    if not _collect(ev, node, list(node.generators), inner, found):
        return unknown("a comprehension", place)
    bounded(found, place)
    if isinstance(node, ast.DictComp):
        return (
            dict(found)
            if all(hashable_literal(key) for key, _ in found)
            else unknown("a comprehension", place)
        )
    if isinstance(node, ast.SetComp):
        return set(found) if all(map(hashable_literal, found)) else unknown("a set", place)
    return found


def _collect(
    ev: Evaluation, node: Any, generators: list[ast.comprehension], scope: Scope, found: list[Any]
) -> bool:
    """Add the elements; False where the elements or a condition cannot be told."""
    if not generators:
        if isinstance(node, ast.DictComp):
            found.append((evaluate(ev, node.key, scope), evaluate(ev, node.value, scope)))
        else:
            found.append(evaluate(ev, node.elt, scope))
        return len(found) <= MOST_ITEMS
    first, *others = generators
    values = evaluate(ev, first.iter, scope)
    if not isinstance(values, list | tuple | dict | set | str):
        return False
    for each in values:
        assign_names(ev, first.target, each, scope)
        tests = [truth(evaluate(ev, test, scope)) for test in first.ifs]
        if None in tests:
            return False
        if all(tests) and not _collect(ev, node, others, scope, found):
            return False
    return True


def assign_names(ev: Evaluation, target: ast.expr, value: Any, scope: Scope) -> None:
    """Bind the names of a target to a value, or to the parts of it."""
    if isinstance(target, ast.Name):
        ev.write(scope.variables, target.id, value)
    elif isinstance(target, ast.Tuple | ast.List):
        parts: list[Any] = list(value) if isinstance(value, list | tuple) else []
        if len(parts) != len(target.elts):
            place = place_of(scope, target)
            parts = [unknown("a part of a value", place) for _ in target.elts]
        for each, part in zip(target.elts, parts, strict=True):
            assign_names(ev, each, part, scope)


def _walrus(ev: Evaluation, node: ast.NamedExpr, scope: Scope) -> Any:
    value = evaluate(ev, node.value, scope)
    assign_names(ev, node.target, value, scope)
    return value


_KINDS: dict[type[ast.AST], Callable[[Evaluation, Any, Scope], Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Call: _call,
    ast.List: _list,
    ast.Tuple: _tuple,
    ast.Set: _set,
    ast.Dict: _dict,
    ast.JoinedStr: _text,
    ast.BoolOp: _boolean,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Compare: _compare,
    ast.IfExp: _choice,
    ast.Subscript: _subscript,
    ast.Lambda: _lambda,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.DictComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.NamedExpr: _walrus,
}
