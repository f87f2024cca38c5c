"""The rank grid: its axes in some order, and the groups in which collectives run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod

import numpy as np
from numpy.typing import NDArray

from topologies.records import record
from topologies.session import session_cached
from workload.errors import PlanError
from workload.words.former_words import order_now

Axes = tuple[str, ...]
AXES = ("tp", "y", "z", "cp", "dp", "pp")
# The role of axes, by which groups are asked for: of what their ranks hold different parts.
SHARDS: Mapping[str, Axes] = {
    "sequences": ("z", "dp"),  # of a step's batch
    "positions": ("cp",),  # of each sequence
    "tokens": ("z", "cp", "dp"),  # of a step, and so the terms of the loss and of gradients
    "rows": ("tp",),  # of the residual stream, with sequence parallelism
    "heads": ("tp",),
    "width": ("y",),  # of the residual stream
    "vocabulary": ("tp", "y"),
    "weights": ("tp", "y", "z"),
    "layers": ("pp",),
}
REPLICAS: Mapping[str, Axes] = {"weights": ("cp", "dp")}  # the same, unless `zero` shards
WITHIN_STAGE = tuple(axis for axis in AXES if axis not in SHARDS["layers"])
USUAL = "tp-dp-pp"
SHARD_PARTS, EXPERT_PARTS = ("shard", "replica"), ("ep", "edp")
PARTS_OF_EXPERTS = ("etp", *EXPERT_PARTS)
COPIES_IN_SHARDS = ("edp_shard", "replica")
CONTEXT_PARTS = ("inner_cp", "outer_cp")
WHERE = ("inner", "middle", "outer")
ENDS, OPPOSITE = "ends", "opposite"
LINK = "link"


@record
class Grid:
    """How many ranks there are along each axis. `order` names them, the axis whose neighbours have
    neighbouring ranks first: usually x, then y, z, context, data, pipe. One that names no context
    has it in front of data.

    Of the data axis, runs of `shard` neighbours (0: all of them) share sharded state: "shard" names
    the axis within a run, "replica" the one across runs. Or runs of `experts` neighbours (0: there
    are none) hold different experts: "expert" names the axis within a run, "edp" the one
    across runs; where `expert_tensor` neighbours have parts of the same experts, "expert_tensor" is
    the axis among these, and their runs are the neighbours of "expert". With both, a run of `shard`
    neighbours holds several copies of experts, among which "edp_shard" is the axis.
    The context axis may fall into runs of neighbours that do something of their own:
    "inner_cp" names the axis within a run, "outer_cp" the one across runs. `cp_runs`
    has the length of a run (none: all of them), or two numbers: the length of the runs, and how
    many of them make a longer run, among which "middle_cp" is the axis. Likewise `tp_runs` of x
    has "inner_tp", "middle_tp" and "outer_tp"; without any, x has no parts.
    "ends" names the pairs of the first and the last stage, "link3" those of the fourth stage and
    the next one in the ring of stages, "opposite" all pairs of stages equally far from either end.
    """

    tp: int = 1
    y: int = 1
    z: int = 1
    dp: int = 1
    pp: int = 1
    shard: int = 0
    order: str = USUAL
    cp: int = 1
    experts: int = 0
    etp: int = 1
    cp_runs: tuple[int, ...] = ()
    tp_runs: tuple[int, ...] = ()
    _known: dict[tuple[str, ...], int] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _steps: dict[str, tuple[int, int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # of an axis and of a part of one: distance between neighbours, and size

    @staticmethod
    def shards_of(what: str) -> Axes:
        """The axes whose ranks hold different parts of something (`SHARDS`)."""
        return SHARDS[what]

    @staticmethod
    def replicas_of(what: str) -> Axes:
        """The axes whose ranks hold the same of something (`REPLICAS`)."""
        return REPLICAS[what]

    def parts_of(self, what: str) -> int:
        """Into how many parts something is split."""
        return self.size(*SHARDS[what])

    @property
    def sizes(self) -> dict[str, int]:
        """Axis name to size."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def ranks(self) -> int:
        """All ranks of the grid."""
        return self.size(*AXES)

    def size(self, *axes: str) -> int:
        """Ranks in one group over these axes together."""
        if axes not in self._known:
            self._known[axes] = prod(map(self._size, axes))
        return self._known[axes]

    def _size(self, axis: str) -> int:
        if axis in AXES:
            size: int = getattr(self, axis)
            return size
        if axis in (ENDS, OPPOSITE) or axis.startswith(LINK):
            return min(self.pp, 2)
        if axis == "replica":
            return self.dp // self._size("shard")
        if axis == "shard":
            return self.shard or self.dp
        if axis == "ep":
            return self.experts or 1
        if axis == "etp":
            return self.etp
        if axis == "edp_shard":
            return self._size("shard") // ((self.experts or 1) * self.etp)
        if axis == "edp":
            return self.dp // ((self.experts or 1) * self.etp)
        where, _, whole = axis.partition("_")
        if where in WHERE and whole in ("tp", "cp"):
            return self._size_of_run(where, whole)
        raise ValueError(f"{axis} is not an axis of a grid")

    def _size_of_run(self, where: str, whole: str) -> int:
        """The size of the inner, middle or outer part of an axis."""
        size: int = getattr(self, whole)
        inner, *middle = (self.tp_runs if whole == "tp" else self.cp_runs) or (size,)
        between = middle[0] if middle else 1
        return {"inner": inner, "middle": between, "outer": size // (inner * between)}[where]

    def _stages(self, pair: str) -> tuple[int, int]:
        first = 0 if pair == ENDS else int(pair.removeprefix(LINK))
        return first, self.pp - 1 if pair == ENDS else (first + 1) % self.pp

    def stride(self, axis: str) -> int:
        """Distance in ranks between neighbours along an axis."""
        dimensions = self._dimensions
        return self.size(*dimensions[: dimensions.index(self._parts.get(axis, (axis,))[0])])

    @property
    def _parts(self) -> Mapping[str, Axes]:
        """Into which parts an axis falls, and a part that falls into others."""
        found: dict[str, Axes] = {"dp": SHARD_PARTS, "cp": CONTEXT_PARTS}
        if self.experts:
            *apart, copies = PARTS_OF_EXPERTS if self.etp > 1 else EXPERT_PARTS
            found["dp"] = *apart, copies
            if 0 < self.shard < self.dp:
                found["dp"] = *apart, *COPIES_IN_SHARDS
                found |= {"shard": (*apart, COPIES_IN_SHARDS[0]), copies: COPIES_IN_SHARDS}
        if len(self.cp_runs) > 1:
            found["cp"] = runs_of_axis("cp", self.cp_runs)
        return found | ({"tp": runs_of_axis("tp", self.tp_runs)} if self.tp_runs else {})

    def parts_of_axis(self, axis: str) -> Axes:
        """The parts of an axis, the one whose neighbours have neighbouring ranks first; an axis
        without parts is its own."""
        return self._parts.get(axis, (axis,))

    @property
    def _dimensions(self) -> Axes:
        """The axes in their order, with those that fall into parts as these."""
        return _dimensions(self.order, *self._parts.items())

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank sits on each axis, and on the parts of those that fall into some."""
        return {axis: rank // stride % size for axis, (stride, size) in self._strides().items()}

    def rank(self, coordinates: dict[str, int]) -> int:
        """The rank at these coordinates; axes left out count as 0."""
        strides = self._strides()
        return sum(strides[axis][0] * at for axis, at in coordinates.items() if axis in AXES)

    def _strides(self) -> dict[str, tuple[int, int]]:
        if not self._steps:
            axes = dict.fromkeys((*AXES, *self._parts, *self._dimensions))
            self._steps.update({axis: (self.stride(axis), self._size(axis)) for axis in axes})
        return self._steps

    def groups(self, *axes: str) -> NDArray[np.int64]:
        """Every group over these axes: an array of shape (groups, members), in rank order.

        The groups hold every rank once, except over "ends" and links, where other stages are in
        none.
        """
        dimensions = self._dimensions[::-1]
        parts = self.dimensions(*axes)
        shape = tuple(self._size(name) for name in dimensions)
        ranks = np.arange(self.ranks, dtype=np.int64).reshape(shape)
        if OPPOSITE in axes:
            at, stages = dimensions.index("pp"), np.arange(self.pp // 2)
            ranks = ranks.take(np.stack([stages, self.pp - 1 - stages], 1), at)
            dimensions = *dimensions[:at], "pp", OPPOSITE, *dimensions[at + 1 :]
        for pair in [axis for axis in axes if axis == ENDS or axis.startswith(LINK)]:
            ranks = ranks.take(sorted(set(self._stages(pair))), dimensions.index("pp"))
            parts = parts - {pair} | {"pp"}
        places = [place for place, name in enumerate(dimensions) if name in parts]
        rest = [place for place, name in enumerate(dimensions) if name not in parts]
        return ranks.transpose(*rest, *places).reshape(-1, self.size(*axes))

    def stage_dimensions(self) -> dict[str, int]:
        """By name the sizes of the dimensions along which the ranks of one stage lie in rank order,
        the slowest first; axes that fall into parts have these."""
        names = self._dimensions[::-1]
        return {name: self._size(name) for name in names if name not in SHARDS["layers"]}

    def dimensions(self, *axes: str) -> frozenset[str]:
        """The dimensions of axes: each its own, or its parts."""
        return frozenset(part for axis in axes for part in self._parts.get(axis, (axis,)))

    def stages(self) -> NDArray[np.int64]:
        """The stage of each rank."""
        return np.arange(self.ranks, dtype=np.int64) // self.stride("pp") % self.pp


def runs_of_axis(axis: str, runs: Sequence[int]) -> Axes:
    """The parts of an axis with such runs of neighbours, the fastest first.

    >>> runs_of_axis("tp", (2,)), runs_of_axis("tp", (2, 4))
    (('inner_tp', 'outer_tp'), ('inner_tp', 'middle_tp', 'outer_tp'))
    """
    return tuple(f"{where}_{axis}" for where in (WHERE if len(runs) > 1 else WHERE[::2]))


@session_cached(256)
def _dimensions(order: str, *parts: tuple[str, Axes]) -> Axes:
    """The axes of an order, with those that fall into parts as these."""
    of = dict(parts)
    return tuple(part for axis in axes_of(order) for part in of.get(axis, (axis,)))


def axes_of(order: str) -> Axes:
    """All axes in an order: y and z stand behind tp and cp stands in front of dp where it does not
    name them.

    >>> axes_of(USUAL)
    ('tp', 'y', 'z', 'cp', 'dp', 'pp')
    """
    named = order.split("-")
    with_others = {"tp": ("tp", *(axis for axis in ("y", "z") if axis not in named))}
    if "cp" not in named:
        with_others["dp"] = ("cp", "dp")
    return tuple(each for axis in named for each in with_others.get(axis, (axis,)))


def order_read(text: str) -> str:
    """An order as somebody wrote it, maybe in words of version 0.2, in its shortest text; one that
    does not name all axes once is left as it is.

    >>> order_read("x-y-z-context-pipe-data"), order_read("x-y")
    ('tp-cp-pp-dp', 'tp-y')
    """
    order = order_now(text)
    axes = axes_of(order)
    return order_of(axes) if sorted(axes) == sorted(AXES) else order


def order_of(axes: Sequence[str]) -> str:
    """The shortest text of an order.

    >>> order_of(("tp", "y", "z", "cp", "pp", "dp")), order_of(("tp", "z", "y", "cp", "dp", "pp"))
    ('tp-cp-pp-dp', 'tp-z-y-dp-pp')
    """
    return "-".join(axes).replace("cp-dp", "dp").replace("tp-y-z", "tp")


def check_order(text: str) -> None:
    """A PlanError unless a text names tp, dp and pp once each, and no axis twice: `tp-pp-dp`."""
    if sorted(axes_of(text)) != sorted(AXES):
        raise PlanError(
            f"order={text} must name tp, dp and pp once each, as in {USUAL}, and may name y, z and "
            "cp"
        )
