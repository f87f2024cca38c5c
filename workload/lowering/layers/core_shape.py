"""Sizes of an attention core by its attributes: heads, widths, and keys for each query."""

from __future__ import annotations

from typing import Any

from workload.models.documents import counted_pairs

Shape = dict[str, Any]


def bands(shape: Shape) -> tuple[int, ...]:
    """Widths of queries, keys and values of the core's heads, side by side."""
    heads, keys, width = (shape[key] for key in ("heads", "kv_heads", "width"))
    return (heads * width, keys * width, keys * value_width(shape))


def value_width(shape: Shape) -> Any:
    """The width of a head's values, and of its context."""
    return shape.get("value_width", shape["width"])


def context_width(shape: Shape) -> Any:
    """The width of the contexts of all heads."""
    return shape["heads"] * value_width(shape)


def products_flops(shape: Shape, rows: Any) -> Any:
    """The FLOPs of both products of the forward core: of each query with all keys of its sequence
    or its document, or as many as its window has."""
    widths = bands(shape)[0] + context_width(shape)
    if packing := shape.get("documents"):
        pairs = counted_pairs(packing, shape.get("window", 0))
        return 2 * rows * pairs * widths // shape["sequence"]
    return 2 * rows * shape.get("window", shape["sequence"]) * widths


def sums_shape(shape: Shape, rows: Any) -> tuple[Any, ...]:
    """The shape of the log-sum-exps of a core that has whole sequences."""
    return rows // shape["sequence"], shape["heads"], shape["sequence"]
