"""The objective of a search: a step's time, its node-hours or its energy."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from simulator.economics import power_w
from simulator.engine.ticks import TICKS_PER_S, to_ticks
from simulator.predict import Prediction
from topologies.errors import MachineError
from topologies.machine import Machine
from topologies.records import record
from workload.sizes.arrays import Ticks, Values

OBJECTIVES = ("time", "node-hours", "energy")
UNITS_PER_J = 10**6
ROUNDING = 1e-12  # by which sums of floats may differ


@record(slots=False)
class Objective:
    """Values to be minimised, in whole numbers: ticks, or for the energy millionths of a joule.

    On so many devices a plan's node-hours are its time. Energy grows with a step's time and with
    how long devices compute in it, so that bounds of both give a bound of it.
    """

    name: str
    machine: Machine
    devices: int

    def __post_init__(self) -> None:
        if self.name == "energy" and math.isnan(self._power(0.0)):
            raise MachineError(
                f"{self.machine.full_name} has no facts on power; give power and device.power"
            )

    def bound(self, step_ticks: Ticks, busy_ticks: Ticks) -> Values:
        """The least value of plans whose steps, and compute in them, take at least so long."""
        if self.name != "energy":
            return step_ticks
        idle, most = self._power(0.0), self._power(math.inf)
        each = self._power(1.0) - idle
        step_s, busy_s = step_ticks / TICKS_PER_S, busy_ticks / TICKS_PER_S
        energy_j = np.minimum(step_s * idle + self.devices * busy_s * each, step_s * most)
        return np.asarray(energy_j * (1 - ROUNDING) * UNITS_PER_J, dtype=np.int64)

    def bound_by(self, several: Iterable[Ticks], busy_ticks: Ticks, threshold: int) -> Values:
        """The least value of plans by several lower bounds of their steps, each taken only while
        some plan is still below a threshold."""
        found = np.zeros(len(busy_ticks), dtype=np.int64)
        for step_ticks in several:
            found = np.maximum(found, self.bound(step_ticks, busy_ticks))
            if not (found < threshold).any():
                break
        return found

    def of(self, prediction: Prediction) -> int:
        """A prediction's value."""
        energy_j = prediction.cost.energy_j_per_step
        if self.name == "energy" and energy_j is not None:
            return round(energy_j * UNITS_PER_J)
        return to_ticks(prediction.step_s)

    def place(self, prediction: Prediction) -> tuple[int, int, str]:
        """Where a prediction stands among others: by its value, of equal ones by its plan, the
        shortest text first. No two plans have the same place."""
        text = str(prediction.plan)
        return self.of(prediction), len(text), text

    def shown(self, value: float) -> float:
        """A value in seconds or joules."""
        return value / (UNITS_PER_J if self.name == "energy" else TICKS_PER_S)

    def _power(self, busy_devices: float) -> float:
        nodes = self.machine.segments(self.devices).nodes
        drawn = power_w(self.machine, nodes, self.devices, busy_devices)
        return math.nan if drawn is None else drawn
