"""Arguments of a call on the parameters of a function."""

from __future__ import annotations

import ast
from typing import Any

from simgpt.frameworks.recipe_code.evaluation import Evaluation
from simgpt.frameworks.recipe_code.expressions import evaluate
from simgpt.frameworks.recipe_code.values import Function, Place, RaisedError, Thing

REST = "**"  # a keyword of what a call spreads and cannot be told


def bound_parameters(
    evaluator: Evaluation,
    called: Function,
    given: list[Any],
    named: dict[str, Any],
    place: Place,
) -> dict[str, Any]:
    """The variables with which a function's body begins; a RaisedError where Python would."""
    parameters = called.node.args
    positional = [each.arg for each in (*parameters.posonlyargs, *parameters.args)]
    found: dict[str, Any] = dict(zip(positional, given, strict=False))
    rest = list(given[len(positional) :])
    if parameters.vararg:
        found[parameters.vararg.arg] = tuple(rest)
    elif rest:
        raise RaisedError(f"{place}: {called.name} takes {len(positional)} arguments")
    own = {*positional, *(each.arg for each in parameters.kwonlyargs)}
    further = {}
    for name, value in named.items():
        if name in own:
            found[name] = value
        else:
            further[name] = value
    if parameters.kwarg:
        found[parameters.kwarg.arg] = further
    elif further and REST not in further:
        raise RaisedError(f"{place}: {called.name} takes no argument {next(iter(further))}")
    _fill(evaluator, called, found, further.get(REST))
    return found


def parameter_names(called: Function) -> list[str]:
    """The names of a function's parameters."""
    own = called.node.args
    return [each.arg for each in (*own.posonlyargs, *own.args, *own.kwonlyargs)]


def defaults_of(evaluator: Evaluation, called: Function) -> dict[str, Any]:
    """What a function's parameters are where no argument gives them."""
    nodes = _default_nodes(called)
    return {name: evaluate(evaluator, node, called.scope) for name, node in nodes.items()}


def _default_nodes(called: Function) -> dict[str, ast.expr]:
    parameters = called.node.args
    positional = [*parameters.posonlyargs, *parameters.args]
    first = len(positional) - len(parameters.defaults)
    names = [each.arg for each in positional[first:]]
    found: dict[str, ast.expr] = dict(zip(names, parameters.defaults, strict=True))
    for each, node in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True):
        if node is not None:
            found[each.arg] = node
    return found


def _fill(evaluator: Evaluation, called: Function, found: dict[str, Any], rest: Any) -> None:
    """Defaults of parameters that no argument gives; of those that an unknown one may give,
    nothing is known."""
    parameters = called.node.args
    defaults = _default_nodes(called)
    positional = [*parameters.posonlyargs, *parameters.args]
    for each in (*positional, *parameters.kwonlyargs):
        if each.arg in found:
            continue
        if isinstance(rest, Thing):
            found[each.arg] = Thing(each.arg, rest.place, why=rest.why)
        elif each.arg in defaults:
            found[each.arg] = evaluate(evaluator, defaults[each.arg], called.scope)
        else:
            raise RaisedError(f"{called.name} needs the argument {each.arg}")
