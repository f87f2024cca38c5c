"""Python that the documentation shows, run again: sessions in pages, and the cells of a notebook.

What is shown is compared, or written anew with `SIMGPT_REWRITE=1`.
"""

from __future__ import annotations

import ast
import base64
import doctest
import io
import re
import traceback
from contextlib import redirect_stdout
from typing import Any

from matplotlib.figure import Figure

SESSION = re.compile(r"```pycon\n(.*?)```", re.DOTALL)
DPI = 80


def rerun_page(text: str) -> str:
    """A page with every session of it run again, all of them in one namespace."""
    names: dict[str, Any] = {}
    return SESSION.sub(lambda found: f"```pycon\n{_rerun_session(found[1], names)}```", text)


def _rerun_session(session: str, names: dict[str, Any]) -> str:
    shown = ""
    for example in doctest.DocTestParser().get_examples(session):
        first, *rest = example.source.splitlines()
        lines = [f">>> {first}", *(f"... {line}".rstrip() for line in rest)]
        shown += "\n".join(lines) + "\n" + _said(example.source, names)
    return shown


def _said(source: str, names: dict[str, Any]) -> str:
    """What a console prints for a statement."""
    sink = io.StringIO()
    try:
        with redirect_stdout(sink):
            exec(compile(source, "<page>", "single"), names)
    except Exception as error:
        head = "Traceback (most recent call last):\n  ...\n"
        return head + "".join(traceback.format_exception_only(error))
    return sink.getvalue()


def rerun_notebook(notebook: dict[str, Any]) -> dict[str, Any]:
    """A notebook with the cells of code run again in their order, in a fresh namespace. The last
    expression of each is shown as a notebook shows it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            source = "".join(cell["source"])
            found = _outputs(source, names, count)
            cells.append({**cell, "execution_count": count, "outputs": found})
        else:
            cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    *body, last = tree.body
    shown = last if isinstance(last, ast.Expr) else None
    tree.body = body if shown else tree.body
    exec(compile(tree, "<cell>", "exec"), names)
    if shown is None:
        return []
    value = eval(compile(ast.Expression(shown.value), "<cell>", "eval"), names)
    return [
        {
            "output_type": "execute_result",
            "execution_count": count,
            "metadata": {},
            "data": _forms(value),
        }
    ]


def _forms(value: Any) -> dict[str, Any]:
    """A value by the kinds of text and pictures that a notebook has of it."""
    if isinstance(value, Figure):
        sink = io.BytesIO()
        value.savefig(sink, format="png", dpi=DPI, metadata={"Software": None})
        return {"text/plain": ["<Figure>"], "image/png": base64.b64encode(sink.getvalue()).decode()}
    forms: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        forms["text/html"] = value._repr_html_().splitlines(keepends=True)
    return forms


def compared(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs that are the same every time: no pictures, and none of cells tagged `varies`."""
    return [
        {kind: form for kind, form in output["data"].items() if kind != "image/png"}
        for cell in notebook["cells"]
        if cell["cell_type"] == "code" and "varies" not in cell["metadata"].get("tags", [])
        for output in cell["outputs"]
    ]
