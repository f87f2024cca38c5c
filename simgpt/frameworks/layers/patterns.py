"""Lists of layers as Megatron-LM writes them, `([0]*3+[1]*58)`; nothing of them is evaluated."""

from __future__ import annotations

import ast

MOST = 100_000  # layers, of any part of a list
LONGEST = 2_000  # characters


def pattern_of(text: str, most: int) -> list[int] | None:
    """The list of a text, of lists of 0 and 1 that are joined and repeated, or of numbers alone;
    None where it is no such text, or has more than so many entries.

    >>> pattern_of("([0]*1+[0,1]*2)", 5)
    [0, 0, 1, 0, 1]
    >>> pattern_of("0 1 1 ", 3)
    [0, 1, 1]
    """
    words = text.split()
    if words and all(word in ("0", "1") for word in words):
        return [int(word) for word in words]
    if len(text) > LONGEST:
        return None
    try:
        tree = ast.parse(text.strip().strip("'\""), mode="eval")
        return _listed(tree.body, most)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _listed(node: ast.expr, most: int) -> list[int]:
    """The list of a part; a ValueError where it is none, or too long."""
    found: list[int] | None = None
    if isinstance(node, ast.List):
        found = [_number(each) for each in node.elts]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        found = _listed(node.left, most) + _listed(node.right, most)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        one, times = _listed(node.left, most), _number(node.right)
        found = one * times if len(one) * times <= most else None
    if found is None or len(found) > most or not set(found) <= {0, 1}:
        raise ValueError
    return found


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError
