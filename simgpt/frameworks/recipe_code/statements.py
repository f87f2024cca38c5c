"""Statements of recipes: assignments, conditions, loops, imports and definitions.

A condition that cannot be told is followed both ways (journal.py). Where a way leaves the function,
the statements behind the condition belong to the other way, so that each way is followed to the end
of its block. Cost: doubled for each such condition in a row, within the bound on steps.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from simgpt.frameworks.recipe_code.evaluation import Evaluation
from simgpt.frameworks.recipe_code.expressions import (
    assign_names,
    compared,
    evaluate,
    hashable_literal,
    operated,
    place_of,
)
from simgpt.frameworks.recipe_code.journal import copy_of, joined, restore, same
from simgpt.frameworks.recipe_code.values import (
    Class,
    External,
    Function,
    Imported,
    Module,
    RaisedError,
    Scope,
    Thing,
    truth,
    unknown,
)
from topologies.records import record

RETURN, BREAK, CONTINUE = "return", "break", "continue"
MOST_LOOPS = 2000


@record
class Signal:
    """How a block is left before its end."""

    kind: str
    value: Any = None


def result_of(ev: Evaluation, body: Sequence[ast.stmt], scope: Scope) -> Any:
    """What a function's body returns."""
    signal = run(ev, body, scope)
    return signal.value if signal is not None and signal.kind == RETURN else None


def run(ev: Evaluation, body: Sequence[ast.stmt], scope: Scope) -> Signal | None:
    """Follow statements; None where they end at the last one."""
    for number, node in enumerate(body):
        ev.step()
        if isinstance(node, ast.If):
            decided = truth(test := evaluate(ev, node.test, scope))
            if decided is None and (_leaves(node.body) or _leaves(node.orelse)):
                rest = list(body[number + 1 :])
                ways = ([*node.body, *rest], [*node.orelse, *rest])
                return _both(ev, *ways, scope, test)
            if decided is None:
                signal = _both(ev, node.body, node.orelse, scope, test)
            else:
                signal = run(ev, node.body if decided else node.orelse, scope)
        else:
            known = _KINDS.get(type(node))
            if known is None:
                ev.note(place_of(scope, node), f"a {type(node).__name__} is left out")
                continue
            signal = known(ev, node, scope)
        if signal is not None:
            return signal
    return None


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether statements may leave the block that they are in."""
    kinds = (ast.Return, ast.Break, ast.Continue, ast.Raise)
    return any(isinstance(each, kinds) for node in body for each in ast.walk(node))


def _both(
    ev: Evaluation,
    one: Sequence[ast.stmt],
    other: Sequence[ast.stmt],
    scope: Scope,
    test: Thing,
) -> Signal | None:
    """Follow both ways of a condition that is unknown, and join what they leave."""

    def join(name: str, first: Any, second: Any) -> Any:
        return unknown(f"{test.label} decides {name}", test.place)

    ev.journal.begin()
    first, refused = _way(ev, one, scope)
    after = ev.journal.undo()
    ev.journal.begin()
    second, refused_too = _way(ev, other, scope)
    written = ev.journal.close()
    if refused and refused_too:
        raise refused
    if refused_too:  # the other way alone: its writes once more
        for container, old in written:
            restore(container, old)
    if not refused and not refused_too:
        _join(ev, after, written, join)
    elif not refused:
        for container, new in after:
            ev.journal.before_write(container)
            restore(container, new)
    if refused:
        return second
    return first if refused_too else _joined_signal(first, second, join)


def _way(
    ev: Evaluation, body: Sequence[ast.stmt], scope: Scope
) -> tuple[Signal | None, RaisedError | None]:
    try:
        return run(ev, body, scope), None
    except RaisedError as error:
        return None, error


def _join(ev: Evaluation, after: list[Any], written: list[Any], join: Callable[..., Any]) -> None:
    """Put what both ways have in common, and unknowns, into all that either wrote."""
    for container in _containers(after, written):
        ev.journal.before_write(container)
        first = copy_of(container, after)
        first = copy_of(container, written) if first is None else first
        restore(container, joined(container if first is None else first, container.copy(), join))


def _containers(*lists: list[Any]) -> list[Any]:
    """The containers in lists of copies, each once."""
    found: list[Any] = []
    for container, _ in [pair for each in lists for pair in each]:
        if not any(each is container for each in found):
            found.append(container)
    return found


def _joined_signal(
    first: Signal | None, second: Signal | None, join: Callable[..., Any]
) -> Signal | None:
    if first is None and second is None:
        return None
    kinds = {each.kind for each in (first, second) if each is not None}
    one, other = (each.value if each is not None else None for each in (first, second))
    kind = RETURN if RETURN in kinds else kinds.pop()
    return Signal(kind, one if same(one, other) else join("what is returned", one, other))


def assign(ev: Evaluation, target: ast.expr, value: Any, scope: Scope) -> None:
    """Assign to a name, an attribute, an element, or several of them."""
    place = place_of(scope, target)
    if isinstance(target, ast.Attribute):
        owner = evaluate(ev, target.value, scope)
        if isinstance(owner, Thing):
            ev.write(owner.fields, target.attr, value)
        else:
            ev.note(place, f"{target.attr} is set of what has no attributes here")
    elif isinstance(target, ast.Subscript):
        owner, key = evaluate(ev, target.value, scope), evaluate(ev, target.slice, scope)
        if isinstance(owner, Thing) and isinstance(key, str):
            ev.write(owner.fields, f"[{key}]", value)
        elif _has_place(owner, key):
            ev.write(owner, key, value)
        else:
            ev.note(place, "an element with an unknown key is set")
    elif isinstance(target, ast.Tuple | ast.List):
        parts = list(value) if isinstance(value, list | tuple) else []
        if len(parts) != len(target.elts):
            parts = [unknown("a part of a value", place) for _ in target.elts]
        for each, part in zip(target.elts, parts, strict=True):
            assign(ev, each, part, scope)
    else:
        assign_names(ev, target, value, scope)


def _has_place(owner: Any, key: Any) -> bool:
    """Whether a container takes a value under a key."""
    if isinstance(owner, list):
        return isinstance(key, int) and -len(owner) <= key < len(owner)
    return isinstance(owner, dict) and hashable_literal(key)


def _assign(ev: Evaluation, node: ast.Assign, scope: Scope) -> None:
    value = evaluate(ev, node.value, scope)
    for target in node.targets:
        assign(ev, target, value, scope)


def _annotated(ev: Evaluation, node: ast.AnnAssign, scope: Scope) -> None:
    if node.value is not None:
        assign(ev, node.target, evaluate(ev, node.value, scope), scope)


def _augmented(ev: Evaluation, node: ast.AugAssign, scope: Scope) -> None:
    old = evaluate(ev, node.target, scope)
    more = evaluate(ev, node.value, scope)
    if isinstance(old, list) and isinstance(more, list) and isinstance(node.op, ast.Add):
        ev.journal.before_write(old)
        old.extend(more)
        return
    assign(ev, node.target, operated(type(node.op), old, more, place_of(scope, node)), scope)


def _expression(ev: Evaluation, node: ast.Expr, scope: Scope) -> None:
    if not isinstance(node.value, ast.Constant):
        evaluate(ev, node.value, scope)


def _return(ev: Evaluation, node: ast.Return, scope: Scope) -> Signal:
    return Signal(RETURN, None if node.value is None else evaluate(ev, node.value, scope))


def _raise(ev: Evaluation, node: ast.Raise, scope: Scope) -> None:
    text = ""
    if isinstance(node.exc, ast.Call) and node.exc.args:
        value = evaluate(ev, node.exc.args[0], scope)
        text = value if isinstance(value, str) else ""
    raise RaisedError(f"{text or 'an exception'} ({place_of(scope, node)})")


def _assert(ev: Evaluation, node: ast.Assert, scope: Scope) -> None:
    """Refuse where the condition does not hold; one that cannot be told is taken to."""
    if truth(evaluate(ev, node.test, scope)) is False:
        message = evaluate(ev, node.msg, scope) if node.msg is not None else ""
        text = message if isinstance(message, str) and message else "an assertion does not hold"
        raise RaisedError(f"{text} ({place_of(scope, node)})")


def _for(ev: Evaluation, node: ast.For, scope: Scope) -> Signal | None:
    values = evaluate(ev, node.iter, scope)
    if not isinstance(values, list | tuple | dict | set | str):
        label = values.label if isinstance(values, Thing) else "what a loop runs over"
        place = values.place if isinstance(values, Thing) else place_of(scope, node)
        test = unknown(label, place)
        assign(ev, node.target, test, scope)
        _both(ev, node.body, [], scope, test)
        return None
    for each in list(values):
        assign(ev, node.target, each, scope)
        signal = run(ev, node.body, scope)
        if signal is not None and signal.kind == RETURN:
            return signal
        if signal is not None and signal.kind == BREAK:
            return None
    return run(ev, node.orelse, scope)


def _while(ev: Evaluation, node: ast.While, scope: Scope) -> Signal | None:
    for _ in range(MOST_LOOPS):
        decided = truth(test := evaluate(ev, node.test, scope))
        if decided is None:
            _both(ev, node.body, [], scope, test)
            return None
        if not decided:
            return run(ev, node.orelse, scope)
        signal = run(ev, node.body, scope)
        if signal is not None and signal.kind != CONTINUE:
            return signal if signal.kind == RETURN else None
    ev.note(place_of(scope, node), f"a loop is left out after {MOST_LOOPS} rounds")
    return None


def _try(ev: Evaluation, node: ast.Try, scope: Scope) -> Signal | None:
    try:
        signal = run(ev, node.body, scope) or run(ev, node.orelse, scope)
    except RaisedError:
        if not node.handlers:
            raise
        handler = node.handlers[0]
        if handler.name:
            ev.write(scope.variables, handler.name, unknown("an exception", place_of(scope, node)))
        signal = run(ev, handler.body, scope)
    return run(ev, node.finalbody, scope) or signal


def _match(ev: Evaluation, node: ast.Match, scope: Scope) -> Signal | None:
    """Follow the first case whose pattern a literal matches; others are left out, and noted."""
    subject = evaluate(ev, node.subject, scope)
    for case in node.cases:
        found = _matches(ev, case.pattern, subject, scope)
        if found and case.guard is not None:
            found = truth(evaluate(ev, case.guard, scope))
        if found is None:
            ev.note(place_of(scope, case.pattern), "a match on an unknown value is left out")
            return None
        if found:
            return run(ev, case.body, scope)
    return None


def _matches(ev: Evaluation, pattern: ast.pattern, subject: Any, scope: Scope) -> bool | None:
    if isinstance(pattern, ast.MatchOr):
        found = [_matches(ev, each, subject, scope) for each in pattern.patterns]
        return True if True in found else None if None in found else False
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
        if pattern.name is not None:
            ev.write(scope.variables, pattern.name, subject)
        return True
    if isinstance(pattern, ast.MatchValue):
        value = evaluate(ev, pattern.value, scope)
        return truth(compared(ast.Eq, subject, value, place_of(scope, pattern)))
    if isinstance(pattern, ast.MatchSingleton):
        return truth(compared(ast.Is, subject, pattern.value, place_of(scope, pattern)))
    return None


def _with(ev: Evaluation, node: ast.With, scope: Scope) -> Signal | None:
    for each in node.items:
        value = evaluate(ev, each.context_expr, scope)
        if each.optional_vars is not None:
            assign(ev, each.optional_vars, value, scope)
    return run(ev, node.body, scope)


def _function(ev: Evaluation, node: ast.FunctionDef, scope: Scope) -> None:
    value: object = Function(node, scope)
    for each in reversed(node.decorator_list):
        decorator = evaluate(ev, each, scope)
        if isinstance(decorator, Function):  # others leave a function as it is, here
            value = ev.call(decorator, [value], {}, place_of(scope, node))
    ev.write(scope.variables, node.name, value)


def _class(ev: Evaluation, node: ast.ClassDef, scope: Scope) -> None:
    bases = tuple(evaluate(ev, each, scope) for each in node.bases)
    names = [each.name if isinstance(each, External | Class) else "" for each in bases]
    enum = any(name.rpartition(".")[2].endswith("Enum") for name in names)
    ev.write(scope.variables, node.name, Class(node.name, node, scope, bases, enum))


def _import(ev: Evaluation, node: ast.Import, scope: Scope) -> None:
    for each in node.names:
        name = each.asname or each.name.partition(".")[0]
        module = each.name if each.asname else name
        ev.write(scope.variables, name, Imported(module, ""))


def _import_from(ev: Evaluation, node: ast.ImportFrom, scope: Scope) -> None:
    module = _absolute(ev, node, scope)
    for each in node.names:
        if each.name != "*":
            ev.write(scope.variables, each.asname or each.name, Imported(module, each.name))
            continue
        found = ev.module(module)
        if isinstance(found, Module):
            for name in [name for name in found.variables if not name.startswith("_")]:
                ev.write(scope.variables, name, found.variables[name])


def _absolute(ev: Evaluation, node: ast.ImportFrom, scope: Scope) -> str:
    """The dotted name of the module that an import names, perhaps relative to its own."""
    if not node.level:
        return node.module or ""
    parts = scope.module.name.split(".")
    if not scope.module.file.endswith("__init__.py"):
        parts = parts[:-1]
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _left(kind: str) -> Callable[[Evaluation, Any, Scope], Signal]:
    return lambda ev, node, scope: Signal(kind)


def _nothing(ev: Evaluation, node: Any, scope: Scope) -> None:
    """Statements that change no setting."""


_KINDS: dict[type[ast.AST], Callable[[Evaluation, Any, Scope], Signal | None]] = {
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.Expr: _expression,
    ast.Return: _return,
    ast.Raise: _raise,
    ast.For: _for,
    ast.While: _while,
    ast.Try: _try,
    ast.Match: _match,
    ast.With: _with,
    ast.FunctionDef: _function,
    ast.ClassDef: _class,
    ast.Import: _import,
    ast.ImportFrom: _import_from,
    ast.Break: _left(BREAK),
    ast.Continue: _left(CONTINUE),
    ast.Pass: _nothing,
    ast.Assert: _assert,
    ast.Delete: _nothing,
    ast.Global: _nothing,
    ast.Nonlocal: _nothing,
}
