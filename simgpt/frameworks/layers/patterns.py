"""Lists of layers as Megatron-LM writes them, `([0]*3+[1]*58)`; nothing of them is evaluated."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.reading import FrameworkError, Reading
from topologies.files.printable import shown
from workload.model.fields import MOST as MOST_OF_MODELS
from workload.models.moe import layers_of

MOST = MOST_OF_MODELS["layers"]  # of any part of a list
LONGEST = 2_000  # characters
DIGITS = 9
WHICH = "moe-layer-freq"


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


def read(reading: Reading) -> None:
    """An integer N says that layers 0, N, 2 N, … have experts, a list says it of each layer."""
    text, layers = reading.text(WHICH, "1"), reading.fields.get("layers", 0)
    every = int(text) if text.isdecimal() and len(text) < DIGITS else 0
    if every > 1 and not layers:  # how many of them have experts is not known then
        return
    marks = [int(n % every == 0) for n in range(layers or 1)] if every else pattern_of(text, MOST)
    if marks is None or len(marks) != (layers or len(marks)):
        said = f"each of {layers} layers" if layers else "each layer"
        raise FrameworkError(
            f"--{WHICH} = {shown(text)} must be a number, or say 0 or 1 of {said}, as in "
            "([0]*1+[1]*31)"
        )
    found = layers_of(marks)
    if found is not None:
        reading.fields |= {"dense_layers": found[0], "expert_every": found[1]}
    elif any(marks):
        reading.refuse(WHICH, "layers with experts must be at equal distances, and some")
    else:
        reading.refuse(WHICH, "no layer has experts; leave out --num-experts")


def pattern_text(fields: Mapping[str, Any]) -> str:
    """Which layers have experts, as `([0]*3+[1]*58)`."""
    before, every = fields["dense_layers"], fields["expert_every"]
    count, rest = divmod(fields["layers"] - before, every)
    parts = [f"[0]*{before}"] if before else []
    one = [0] * (every - 1) + [1]
    parts += [f"{one}*{count}".replace(" ", "")] if count else []
    parts += [f"[0]*{rest}"] if rest else []
    return f"({'+'.join(parts)})"


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
