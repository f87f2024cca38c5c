"""Compute costs read off a profile: times measured on the machine at hand, interpolated.

A table is named after an op kind and a precision, as in `matmul@bf16`. Its first column, `ranks`,
tells how many ranks were busy at once while it was measured; of those the nearest to the
prediction's own number counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import product
from math import exp, log, prod

from topologies.errors import MachineError
from topologies.hardware.node import ASSUMED_UPDATE
from topologies.hardware.profile import MeasuredTable, Profile
from workload.kinds import ATTENTIONS, KINDS, MATMULS, Costs
from workload.op import BUSIEST, FORMS, Op

TOGETHER = ("batched_matmul", "stacked_matmul")  # whose products fill the device together
Point = tuple[float, float, float]


class CalibratedCosts:
    """Op times interpolated in a profile's tables, in logarithms of size and time.

    Not modelled: whatever differs between a kernel measured alone and the same kernel between
    others (caches, clocks). Copies from and to the host's memory, which no table has, go at
    `host_bytes_per_s`.
    """

    def __init__(
        self,
        profile: Profile,
        ranks: int,
        host_bytes_per_s: float,
        update_bytes_per_s: float = ASSUMED_UPDATE,
    ) -> None:
        self._host_bytes_per_s = host_bytes_per_s
        self._update_bytes_per_s = update_bytes_per_s / ranks
        self._host = profile.host
        tables = {kind: _nearest_ranks(table, ranks) for kind, table in profile.kernels.items()}
        self._grids: dict[str, dict[str, _Grid]] = {}
        self._curves: dict[tuple[str, str], _Curve] = {}
        for name, rows in tables.items():
            kind, _, precision = name.partition("@")
            if kind == "matmul":
                self._grids[precision] = _matmul_grids(rows)
            elif kind == "batched_matmul":
                for form, points in _points_by_form(rows).items():
                    self._curves[kind + form, precision] = _curve(points)
            else:
                is_attention = kind.partition(".")[0] in ATTENTIONS
                points = _attention_points(rows) if is_attention else _points(rows)
                self._curves[kind, precision] = _curve(points)
        self._known: dict[tuple[object, ...], float] = {}

    def host_s(self, op: Op) -> float:
        """What the host took to issue such an op; 0 where measured times have it in them."""
        return self._host.get(f"{op.kind}@{op.dtype}", 0.0)

    def seconds(self, op: Op) -> float:
        """Seconds that the op takes; ops of the same kind and size are worked out once."""
        shape = (op.attributes["form"], *op.mnk) if op.kind in MATMULS else ()
        key = (op.kernel, op.dtype, shape, op.nbytes, op.flops, op.attributes.get(BUSIEST))
        if key not in self._known:
            self._known[key] = self._seconds(op)
        return self._known[key]

    def _seconds(self, op: Op) -> float:
        row = KINDS[op.kind]
        if row.costs is Costs.PRODUCT:
            return self._matmul_s(op)
        if row.costs is Costs.HOST_COPY:
            return op.nbytes / self._host_bytes_per_s
        if row.costs is Costs.HOST:
            return op.nbytes / self._update_bytes_per_s
        if row.costs is Costs.ATTENTION:
            kernel = self._measured(op.dtype, op.kernel) or op.kind
            return self._curve_of(kernel, op.dtype).seconds(_attention_work(op))
        kind = self._measured(op.dtype, op.kind, row.measured_as)
        return self._curve_of(kind or op.kind, op.dtype).seconds(op.nbytes)

    def _measured(self, dtype: str, *kernels: str) -> str:
        """The first of some kernels that has a table; empty if none has."""
        return next((each for each in kernels if (each, dtype) in self._curves), "")

    def _matmul_s(self, op: Op) -> float:
        """A batched matmul has a curve of its own or, unmeasured, goes as one of all its rows, as
        that of stacks does. A
        grouped one is as many matmuls as there are experts (`executor/kernels/experts.py`)."""
        form = op.attributes["form"]
        if (op.kind + form, op.dtype) in self._curves:
            return self._curves[op.kind + form, op.dtype].seconds(op.flops)
        grids = self._grids.get(op.dtype)
        if not grids:
            raise self._missing("matmul", op.dtype)
        grid = grids.get(form) or next(iter(grids.values()))
        m, n, k = op.mnk
        together = op.attributes["count"] if op.kind in TOGETHER else 1
        return op.flops / grid.flops_per_s(m * together, n, k)

    def _curve_of(self, kind: str, precision: str) -> _Curve:
        if (kind, precision) not in self._curves:
            raise self._missing(kind, precision)
        return self._curves[kind, precision]

    def _missing(self, kind: str, precision: str) -> MachineError:
        measured = ", ".join(self._grids) or "nothing"
        return MachineError(
            f"the profile has no table {kind}@{precision} (matmuls were measured in {measured}); "
            "`simgpt calibrate` makes a new one"
        )


def _nearest_ranks(table: MeasuredTable, ranks: int) -> list[tuple[float, ...]]:
    """The rows measured with the number of busy ranks nearest to `ranks`, without that column."""
    nearest = min((row[0] for row in table.rows), key=lambda busy: (abs(log(busy / ranks)), busy))
    return [row[1:] for row in table.rows if row[0] == nearest]


class _Curve:
    """Seconds against size, straight between measured points on logarithmic scales.

    Below the first point the time stays (launch bound), above the last the rate does.
    """

    def __init__(self, sizes: Sequence[float], seconds: Sequence[float]) -> None:
        self._sizes = [log(size) for size in sizes]
        self._seconds = [log(value) for value in seconds]

    def seconds(self, size: float) -> float:
        at = log(max(size, 1.0))
        xs, ys = self._sizes, self._seconds
        if at <= xs[0]:
            return exp(ys[0])
        if at >= xs[-1]:
            return exp(ys[-1] + at - xs[-1])
        right = bisect_right(xs, at)
        share = (at - xs[right - 1]) / (xs[right] - xs[right - 1])
        return exp(ys[right - 1] + share * (ys[right] - ys[right - 1]))


def _curve(points: Sequence[tuple[float, float]]) -> _Curve:
    """A curve through the points; of several with one size the fastest counts."""
    fastest: dict[float, float] = {}
    for size, seconds in sorted(points):
        fastest.setdefault(size, seconds)
    return _Curve(list(fastest), list(fastest.values()))


def _points(rows: Sequence[tuple[float, ...]]) -> list[tuple[float, float]]:
    return [(row[0], row[-1]) for row in rows]


def _points_by_form(rows: Sequence[tuple[float, ...]]) -> dict[str, list[tuple[float, float]]]:
    """Work against time for each BLAS form, which tells apart the shapes that attention multiplies;
    columns form, flops, seconds."""
    every = {form: [row[1:] for row in rows if row[0] == at] for at, form in enumerate(FORMS)}
    return {form: _points(chosen) for form, chosen in every.items() if chosen}


def _attention_points(rows: Sequence[tuple[float, ...]]) -> list[tuple[float, float]]:
    """Work against time; columns rows (tokens), heads, width, sequence, seconds."""
    return [(prod(row[:4]), row[4]) for row in rows]


def _attention_work(op: Op) -> float:
    """tokens * heads * width * sequence, from an op that counts 4 (backward: 8) FLOPs for each; of
    the rank that has most of them."""
    most = float(op.attributes.get(BUSIEST, 1.0))
    return most * op.flops / (4 if op.kind == "attention" else 8)


class _Grid:
    """The rate of a matmul over (m, n, k), multilinear in logarithms, constant outside."""

    def __init__(self, axes: tuple[list[float], ...], log_rates: Mapping[Point, float]) -> None:
        self._axes = axes
        self._log_rates = log_rates

    def flops_per_s(self, m: float, n: float, k: float) -> float:
        sides = [_between(axis, at) for axis, at in zip(self._axes, (m, n, k), strict=True)]
        total = 0.0
        for corner in product(*sides):
            (a, share_a), (b, share_b), (c, share_c) = corner
            total += share_a * share_b * share_c * self._log_rates[a, b, c]
        return exp(total)


def _between(axis: list[float], at: float) -> list[tuple[float, float]]:
    """The measured neighbours of a size with their shares, nearest only beyond either end."""
    right = bisect_right(axis, at)
    if right == 0 or right == len(axis):
        return [(axis[max(right - 1, 0)], 1.0)]
    low, high = axis[right - 1], axis[right]
    share = log(at / low) / log(high / low)
    return [(low, 1 - share), (high, share)]


def _matmul_grids(rows: Sequence[tuple[float, ...]]) -> dict[str, _Grid]:
    """A grid for each BLAS form that was measured; columns form, m, n, k, seconds."""
    grids = {}
    for code, form in enumerate(FORMS):
        times = {(row[1], row[2], row[3]): row[4] for row in rows if row[0] == code}
        if not times:
            continue
        axes = tuple(sorted({point[axis] for point in times}) for axis in range(3))
        missing = [point for point in product(*axes) if point not in times]
        if missing:
            raise MachineError(f"kernels.matmul has no {form} row for m, n, k = {missing[0]}")
        rates = {(m, n, k): log(2 * m * n * k / s) for (m, n, k), s in times.items()}
        grids[form] = _Grid(axes, rates)
    return grids
