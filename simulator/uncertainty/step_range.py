"""The range that a measured step falls into in eight of ten cases, from published runs.

For each published run with a plan (`residuals.csv`, written by `python -m
tools.residuals`) the logarithm of measured over predicted step is known. Runs count
the more, the more they are like the prediction: by stack, device, number of devices and kind of
plan; a run at distance d counts e^-d, and all runs of one source together as much as the nearest of
them, so that a source of hundreds of runs does not decide alone. The range goes from the tenth to
the ninetieth percentile of what they say, widened by `WIDENING`. A prediction that is far from all
runs gets a wider range: residuals count in units of a spread of 1 + `SPREAD` * d, d being how far a
run lies from the nearest of another source. Models with experts have runs of their own, of few
sources, and a widening of their own.

Source: weighted conformal prediction (Barber et al., Conformal prediction beyond exchangeability,
arXiv 2202.13415, section 3) of normalised residuals (Lei et al., Distribution-free predictive
inference for regression, arXiv 1604.04173, section 5.2), with the widening that makes eight of ten
right when the runs of a source are predicted from those of all others. The distances among
themselves were set beforehand; their scale, of five tried, the spread, of four, and the widening
were chosen on published runs, of which these are a part.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.stacks.stack import Stack
from topologies.errors import MachineError
from topologies.files.reading import shipped_text
from topologies.hardware.device_library import family_of, gpu_of
from topologies.records import record
from topologies.session import session_cached
from workload.plan import Plan
from workload.recipes.table import NO_RECIPE

SHARE = 0.8  # of the steps that fall into the range
WIDENING = 1.02  # python -m tools.residuals --coverage
WIDENING_OF_EXPERTS = 1.3  # simgpt validate moe
OTHER_STACK, OTHER_STACK_FAMILY = 0.5, 1.5
OTHER_GPU, OTHER_GPU_FAMILY = 0.5, 1.0
DOUBLED = 1 / 6  # distance of a plan on twice as many devices
SPREAD = 0.25  # of a residual's spread at distance 0, for each unit of distance
OTHER_KIND = 0.3  # with or without tensor parallelism, with or without a pipeline
DENSE, OF_EXPERTS = "residuals", "residuals_of_experts"  # tables that come with the package
OF_MODELS = " of models with experts"  # in words on runs of the second
NEAR = 1.0  # runs that are called alike
FEW = 5  # of them, below which the answer says that others decide with them
Reals = NDArray[np.float64]


class Run(NamedTuple):
    """What of a run decides how like it is another: its stack and that one's family, its device
    and that one's family, how many there are, and whether its plan has tensor parallelism and a
    pipeline. Of many runs, arrays of these."""

    stack: Any
    stack_family: Any
    gpu: Any
    gpu_family: Any
    devices: Any
    tensor: Any
    pipeline: Any


class PublishedRow(NamedTuple):
    """A published run, and the logarithm of its measured over its predicted step. Rows with the
    same `question` differ in the plan and the batch alone, those with the same `plan` in neither;
    `predicted_s` is the predicted time of one sequence, or NaN where the batch is not known, and
    `apart` the distance to the nearest run of another source."""

    source: str
    run: Run
    residual: float
    question: int
    plan: int
    predicted_s: float
    recipe: str = NO_RECIPE
    apart: float = 0.0


@record
class StepRange:
    """From `low_s` to `high_s`; `alike` of the published runs are near, of so many sources, and
    `words` say where the range comes from."""

    low_s: float
    high_s: float
    alike: int
    sources: int
    words: str

    def as_dict(self) -> dict[str, Any]:
        """As it stands in a prediction's JSON."""
        about = {"share": SHARE, "alike": self.alike, "basis": self.words}
        return {"low_step_s": self.low_s, "high_step_s": self.high_s, "range": about}


class PublishedResiduals:
    """The runs that are known, and what they took over what was predicted, as a logarithm.

    `apart` is the distance of each run to the nearest of another source; without it all are 0.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        sources: Sequence[str],
        residuals: Sequence[float],
        widening: float = WIDENING,
        apart: Sequence[float] = (),
    ) -> None:
        self.widening = widening
        spread = _spread(np.array(apart or [0.0] * len(runs)))
        units = np.array(residuals, dtype=np.float64) / spread
        order = np.argsort(units, kind="stable")
        columns = zip(*(runs[at] for at in order.tolist()), strict=True)
        self._runs = Run(*map(np.array, columns))
        self._sources = np.array([sources[at] for at in order.tolist()])
        self._units, self._spread = units[order], spread[order]

    @property
    def rows(self) -> list[tuple[str, Run, float]]:
        """Source, run and logarithm of measured over predicted of each, the least first."""
        runs = map(Run._make, zip(*(column.tolist() for column in self._runs), strict=True))
        residuals = (self._units * self._spread).tolist()
        found = zip(self._sources.tolist(), runs, residuals, strict=True)
        return sorted(found, key=lambda each: each[2])

    @cached_property
    def _source_number(self) -> NDArray[np.int64]:
        return np.asarray(np.unique(self._sources, return_inverse=True)[1], dtype=np.int64)

    def distances(self, run: Run) -> Reals:
        """How unlike each run is to another: 0 for the same stack, device, size, kind of plan."""
        other = self._runs
        far = np.abs(np.log2(run.devices / other.devices)) * DOUBLED
        alike = other.stack_family == run.stack_family
        far += np.where(alike, OTHER_STACK, OTHER_STACK_FAMILY) * (other.stack != run.stack)
        alike = other.gpu_family == run.gpu_family
        far += np.where(alike, OTHER_GPU, OTHER_GPU_FAMILY) * (other.gpu != run.gpu)
        kind = (other.tensor != run.tensor) | (other.pipeline != run.pipeline)
        return np.asarray(far + OTHER_KIND * kind)

    def apart(self, run: Run, *, without: str = "") -> float:
        """How far a run is from the nearest of all sources but one; 0 where there is none."""
        counted = self._sources != without
        return float(self.distances(run)[counted].min(initial=math.inf)) if counted.any() else 0.0

    def range_of(
        self,
        step_s: float,
        run: Run,
        *,
        without: str = "",
        share: float = SHARE,
        of: str = "",
        further: float = 0.0,
    ) -> StepRange:
        """The range about a predicted step into which that share of steps falls, from the runs of
        all sources but one; `of` says of what kind of models they are, and `further` how much
        further off the run is than what a `Run` knows of it tells."""
        far = self.distances(run)
        weights = weights_of(far, self._source_number, self._sources != without)
        wide = self.widening * _spread(self.apart(run, without=without) + further)
        ends = (1 - share) / 2, (1 + share) / 2
        low, high = (wide * quantile(self._units, weights, end) for end in ends)
        near = (far <= NEAR) & (self._sources != without)
        alike, sources = int(near.sum()), len(set(self._sources[near].tolist()))
        return StepRange(
            step_s * math.exp(min(low, 0.0)),
            step_s * math.exp(max(high, 0.0)),
            alike,
            sources,
            _words(run, alike, sources, of),
        )


def _spread(apart: Any) -> Any:
    """The spread of residuals at a distance from all runs, or at several, over that at none."""
    return 1 + SPREAD * apart


def weights_of(far: Reals, source_number: NDArray[np.int64], counted: NDArray[np.bool_]) -> Reals:
    """How much findings at these distances count: e^-d, and all of one source together as much as
    its nearest."""
    weights = np.exp(-far) * counted
    total = np.bincount(source_number, weights)
    most = np.zeros(len(total))
    np.maximum.at(most, source_number, weights)
    return np.asarray(weights * (most / np.where(total > 0, total, 1.0))[source_number])


def quantile(ascending: Reals, weights: Reals, share: float) -> float:
    """The least of some values, given in ascending order, below which lies that share of their
    weights."""
    summed = np.cumsum(weights)
    at = int(np.searchsorted(summed, share * summed[-1]))
    return float(ascending[min(at, len(ascending) - 1)])


def step_range(
    step_s: float,
    stack: Stack,
    device: str,
    plan: Plan,
    *,
    experts: bool = False,
    further: float = 0.0,
) -> StepRange:
    """The range of a plan's predicted step on devices of that name: from runs of dense models, or
    from those of models with `experts` (`further`: see `range_of`)."""
    known = published_residuals(table_of(experts=experts))
    of = OF_MODELS if experts else ""
    return known.range_of(step_s, run_of_plan(stack, device, plan), of=of, further=further)


def table_of(*, experts: bool) -> str:
    """The table of models with experts, or of those without."""
    return OF_EXPERTS if experts else DENSE


def run_of_plan(stack: Stack, device: str, plan: Plan) -> Run:
    """A plan on a stack and on devices of that name as a run."""
    tensor, family = plan.tp * plan.y > 1, stack.family or stack.name
    return Run(stack.name, family, *gpu_names(device), plan.grid.ranks, tensor, plan.pp > 1)


def gpu_names(device: str) -> tuple[str, str]:
    """A device's name in the library and that of its family; its own where it is in none."""
    try:
        return str(gpu_of(device)["name"]), family_of(device)
    except MachineError:
        return device, device


def _words(run: Run, alike: int, sources: int, kind: str) -> str:
    if not alike:
        return (
            f"not validated: no comparable published run{kind} with stack {run.stack} on "
            f"{run.devices:,} {run.gpu}"
        )
    runs = "run" if alike == 1 else "runs"
    of = "1 source" if sources == 1 else f"{sources} sources"
    few = "; these are few, so less similar runs count as well" if alike < FEW else ""
    return f"from {alike:,} comparable published {runs}{kind} ({of}){few}"


@session_cached(2)
def published_runs(table: str = DENSE) -> tuple[PublishedRow, ...]:
    """The rows that come with the package, as `tools/residuals.py` writes them."""
    lines = shipped_text("simulator", f"uncertainty/{table}.csv").splitlines()
    return tuple(
        PublishedRow(
            row["source"],
            Run(
                row["stack"],
                row["stack_family"],
                row["gpu"],
                row["gpu_family"],
                int(row["devices"]),
                row["tensor"] == "yes",
                row["pipeline"] == "yes",
            ),
            float(row["residual"]),
            int(row["question"]),
            int(row["plan"]),
            float(row["predicted_s"] or "nan"),
            row["recipe"],
            float(row["apart"]),
        )
        for row in csv.DictReader(lines)
    )


@session_cached(2)
def published_residuals(table: str = DENSE) -> PublishedResiduals:
    """The residuals that come with the package."""
    rows = published_runs(table)
    sources, runs, residuals, *_ = zip(*rows, strict=True)
    widening = WIDENING_OF_EXPERTS if table == OF_EXPERTS else WIDENING
    return PublishedResiduals(runs, sources, residuals, widening, [row.apart for row in rows])
