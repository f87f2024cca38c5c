"""Rows on their way to experts in 8 bits, each with the scales of its blocks of columns.

Tokens are cast before they are copied to their places, and rows are cast back behind the exchange
where anything but a linear reads them: a recipe's copies for linears are made of the 8 bits
themselves (`workload/lowering/recipes/casts.py`). What experts make of rows, and the gradients of
what they got, go back as they are. Source: DeepSeek-V3 (2412.19437), section 3.3.3, "Low-Precision
Communication"; deepseek-ai/DeepEP, README, whose rows bring a scale in fp32 for each 128 values.
Not modelled: scales of DeepSeek-V3's dispatch that are powers of two, and rows that are gathered
over ranks with parts of the same experts before, in the dtype of training."""

from __future__ import annotations

from typing import Any

from workload.kinds import DEQUANTISE_ROWS, QUANTISE_ROWS
from workload.lowering.builder import Builder
from workload.recipes.table import INPUT, Recipe, recipe_of

How = tuple[Recipe, str]  # by which recipe, and whether as it casts an input or a gradient
AS_KEPT: How = (recipe_of("fp8-blockwise"), INPUT)


def narrowed(b: Builder, label: str, tokens: str, *, kind: str = INPUT) -> str:
    """Emit the cast of what is sent, an input or a gradient, if it is sent in 8 bits; returns what
    is copied to places."""
    if not b.plan.experts.fp8_dispatch:
        return tokens
    return narrow(b, f"{label}.narrow", tokens, (recipe_of(b.plan.training.recipe), kind))


def widened(b: Builder, label: str, rows: str, columns: int, *, kind: str = INPUT) -> str:
    """Emit the cast of rows that came in 8 bits to as many columns in the dtype of training."""
    if not b.plan.experts.fp8_dispatch:
        return rows
    return wide(b, f"{label}.wide", rows, columns, (recipe_of(b.plan.training.recipe), kind))


def narrow(b: Builder, label: str, rows: str, how: How) -> str:
    """Emit the cast of rows into 8 bits with their scales; returns these."""
    own, columns = b.buffers[rows], b.buffers[rows].shape[1]
    shape = own.shape[0], how[0].sent_bytes(columns)
    out = b.tensor(label, shape, "fp8", rows_of=own.rows_of)
    b.op(label, QUANTISE_ROWS, [rows], [out], **_attributes(how, columns))
    return out


def wide(b: Builder, label: str, rows: str, columns: int, how: How) -> str:
    """Emit the cast of such rows of so many values to the dtype of training; returns these."""
    own = b.buffers[rows]
    out = b.tensor(label, (own.shape[0], columns), rows_of=own.rows_of)
    b.op(label, DEQUANTISE_ROWS, [rows], [out], **_attributes(how, columns))
    return out


def _attributes(by: How, columns: int) -> dict[str, Any]:
    """What a kernel must know of rows that bring their scales."""
    recipe, kind = by
    how: dict[str, Any] = {"formats": (recipe.format_of(kind),), "scaling": recipe.scaling}
    return how | {"columns": columns, "length": recipe.length}
