"""The plan: how a GPT and its batch are split over ranks, and what overlaps what."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from workload.errors import PlanCannotRunError, PlanError
from workload.grid import AXES, Grid

OVERLAPS = ("oar", "ors", "oag", "dp")
RECOMPUTES = ("none", "full")
PRECISIONS = ("bf16", "fp32", "fp64")
REST = "rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one training step is split.

    `x, y, z` are the 3D tensor-parallel axes, `data` the data-parallel one. `batch` counts the
    sequences of a step; `micro_batch` those that one device pushes through the model at a time (z
    and data split the batch, x and y see the same sequences). `overlap` names AxoNN's switches:
    `oar` input-gradient all-reduce beside the weight-gradient matmul, `ors` reduce-scatters awaited
    at the end of the backward pass, `oag` weight gathers one linear ahead, `dp` gradient all-reduce
    bucket by bucket beside the backward pass.
    """

    x: int = 1
    y: int = 1
    z: int = 1
    data: int = 1
    pipe: int = 1
    batch: int
    micro_batch: int
    recompute: str = "none"
    overlap: tuple[str, ...] = OVERLAPS
    precision: str = "bf16"

    def __post_init__(self) -> None:
        for key in (*AXES, "batch", "micro_batch"):
            if getattr(self, key) < 1:
                raise PlanError(f"{key}={getattr(self, key)} must be at least 1")
        if self.pipe > 1:
            raise PlanError(f"pipe={self.pipe} is not supported yet; use pipe=1")
        _one_of("recompute", self.recompute, RECOMPUTES)
        _one_of("precision", self.precision, PRECISIONS)
        for switch in self.overlap:
            _one_of("overlap", switch, OVERLAPS)
        per_rank, left = divmod(self.batch, self.z * self.data)
        if left or not per_rank:
            raise PlanCannotRunError(
                f"batch={self.batch} does not divide over z*data={self.z * self.data} ranks; "
                f"nearest: {_nearest_multiples(self.batch, self.z * self.data)}"
            )
        if per_rank % self.micro_batch:
            raise PlanCannotRunError(
                f"micro_batch={self.micro_batch} does not divide a rank's {per_rank} sequences "
                f"(batch={self.batch} over z*data={self.z * self.data}); "
                f"try {_divisors_text(per_rank)}"
            )

    @property
    def grid(self) -> Grid:
        """The rank grid of this plan."""
        return Grid(self.x, self.y, self.z, self.data, self.pipe)

    @property
    def micro_batches(self) -> int:
        """How many micro-batches a rank runs in one step."""
        return self.batch // (self.z * self.data * self.micro_batch)

    def with_micro_batches(self, count: int) -> Plan:
        """The same plan for a step of `count` micro-batches."""
        return replace(self, batch=count * self.z * self.data * self.micro_batch)

    def __str__(self) -> str:
        """The plan in the one grammar, without the batch and without what stands at its default."""
        words = [f"{axis}={getattr(self, axis)}" for axis in AXES[:4]]
        if self.micro_batches > 1:
            words.append(f"micro_batch={self.micro_batch}")
        if self.recompute != "none":
            words.append(f"recompute={self.recompute}")
        if set(self.overlap) != set(OVERLAPS):
            words.append(f"overlap={'+'.join(self.overlap) or 'none'}")
        if self.precision != "bf16":
            words.append(f"precision={self.precision}")
        return ",".join(words)

    def as_dict(self) -> dict[str, Any]:
        """The plan's keys and values, as they stand in TOML and JSON."""
        return {**asdict(self), "overlap": list(self.overlap)}


def parse_plan(
    text: str | Mapping[str, Any], *, devices: int | None = None, batch: int | None = None
) -> Plan:
    """Read a plan from its text (`x=2,y=2,data=rest`) or from a table of the same keys.

    `devices` is what `data=rest` fills, and must equal the plan's ranks where both are given.
    Without a batch anywhere, a step is one micro-batch per rank; without `micro_batch`, a rank runs
    its whole share at once.
    """
    given = dict(text) if isinstance(text, Mapping) else _split(text)
    values = {key: _value(key, value) for key, value in given.items()}
    _fill_rest(values, devices)
    if batch is not None and values.setdefault("batch", batch) != batch:
        raise PlanError(f"the plan says batch={values['batch']}, the command batch={batch}")
    cells = values.get("z", 1) * values.get("data", 1)
    if "batch" not in values:
        values["batch"] = cells * values.get("micro_batch", 1)
    if "micro_batch" not in values:
        values["micro_batch"] = max(values["batch"] // max(cells, 1), 1)
    plan = Plan(**values)
    if devices is not None and plan.grid.ranks != devices:
        raise PlanCannotRunError(
            f"the plan's axes multiply to {plan.grid.ranks} ranks, not to {devices} devices; "
            "one axis may be given as data=rest"
        )
    return plan


def _split(text: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for word in filter(None, re.split(r"[,\s]+", text)):
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise PlanError(f"cannot read {word!r} in the plan; write key=value, as in x=2,data=4")
        if key in given:
            raise PlanError(f"{key} stands twice in the plan")
        given[key] = value
    return given


def _value(key: str, value: Any) -> Any:
    known = [field.name for field in fields(Plan)]
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        raise PlanError(f"unknown plan key {key!r}; {hint}")
    if key == "overlap":
        return _overlap(value)
    if key in ("recompute", "precision"):
        return str(value)
    if key == "data" and value == REST:
        return REST
    try:
        return int(str(value))
    except ValueError:
        raise PlanError(f"{key}={value} must be a whole number") from None


def _overlap(value: Any) -> tuple[str, ...]:
    words = value.split("+") if isinstance(value, str) else [str(word) for word in value]
    if words == ["none"] or not words:
        return ()
    if words == ["all"]:
        return OVERLAPS
    for word in words:
        _one_of("overlap", word, OVERLAPS)
    return tuple(switch for switch in OVERLAPS if switch in words)


def _fill_rest(values: dict[str, Any], devices: int | None) -> None:
    if values.get("data") != REST:
        return
    if devices is None:
        raise PlanError("data=rest needs a number of devices to fill")
    inner = 1
    for axis in ("x", "y", "z", "pipe"):
        inner *= max(values.get(axis, 1), 1)
    if devices % inner:
        raise PlanCannotRunError(
            f"x*y*z={inner} does not divide {devices} devices, so data=rest cannot fill"
        )
    values["data"] = devices // inner


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise PlanError(f"{key}={value} is not supported; use one of {', '.join(allowed)}")


def _nearest_multiples(value: int, step: int) -> str:
    below = value // step * step
    return ", ".join(str(multiple) for multiple in (below, below + step) if multiple > 0)


def _divisors_text(value: int) -> str:
    divisors = [d for d in range(1, min(value, 4096) + 1) if value % d == 0]
    return ", ".join(map(str, divisors[:12]))
