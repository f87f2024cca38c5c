"""Tables and dataclasses as Python prints them, read without being evaluated."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

from simgpt.frameworks.reading import FrameworkError

MOST = 2**20  # characters
MOST_DEPTH = 100
_ANGLES = re.compile(r"<([\w.]+)[^<>]*>")  # as Python prints members of enumerations, and objects


def value_of(text: str, origin: str) -> Any:
    """Parse a printed value: numbers, texts, lists, tables; a dataclass becomes the table of its
    fields, and a name its text. Raises a FrameworkError for anything else.

    >>> value_of("Config(tp=2, dtype=torch.bfloat16, names=['a'], mode=<Mode.ALL: 1>)", "it")
    {'tp': 2, 'dtype': 'torch.bfloat16', 'names': ['a'], 'mode': 'Mode.ALL'}
    """
    try:
        if len(text) > MOST:
            raise ValueError
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what the text would do as a program
            tree = ast.parse(_ANGLES.sub(r"'\1'", text.strip()), mode="eval")
        return _value(tree.body, MOST_DEPTH)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise FrameworkError(
            f"{origin}: the printed configuration cannot be read: give MODEL and --plan"
        ) from None


def _value(node: ast.expr, depth: int) -> Any:
    if not depth:
        raise ValueError
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(each, depth - 1) for each in node.elts]
    if isinstance(node, ast.Dict):
        return {
            str(_value(key, depth - 1)): _value(value, depth - 1)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        }
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand, depth - 1)
        return -value if isinstance(value, int | float) else value
    if isinstance(node, ast.Call):
        if node.args and not node.keywords:  # PosixPath('…')
            return _value(node.args[0], depth - 1)
        return {each.arg: _value(each.value, depth - 1) for each in node.keywords if each.arg}
    if isinstance(node, ast.Name | ast.Attribute):
        return ast.unparse(node)
    raise ValueError
