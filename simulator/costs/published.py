"""Compute costs from published tables: the analytic model, put right by what was measured nearby.

What is interpolated is not a time but the logarithm of measured over modelled: the model knows how
a matmul's time grows with its shape, and the table what the model does not know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from simulator.costs.analytic import AnalyticCosts, matmul_s, peak_flops_per_s
from simulator.costs.kernels import PLAIN_KERNELS, Kernels
from topologies.errors import MachineError
from topologies.hardware.measured_matmuls import Shape, matmuls_of
from topologies.machine import Machine
from topologies.records import record
from workload.op import Op

NEIGHBOURS = 8
REACH = math.log(2)  # how far off the nearest measured shape may be, in each direction a doubling
NEAREST = 1e-3  # a shape itself counts as so far off, so that no weight is infinite
HALF = 2  # bytes of an element: tables are fp16, which is as fast as bf16


@record
class Correction:
    """What a modelled time is to be multiplied by, and the relative error that then remains: the
    spread of the neighbours' own factors. None where nothing near was measured."""

    factor: float
    error: float | None


class MatmulTable:
    """Corrections of a machine's matmul model, interpolated in a table of measured shapes.

    The eight nearest shapes count, by the square of their distance in logarithms of m, n and k;
    where the nearest is more than a doubling away, the model stands as it is.
    """

    def __init__(self, machine: Machine, seconds: Mapping[Shape, float]) -> None:
        peak = peak_flops_per_s(machine, "bf16")
        modelled = [matmul_s(machine.device, peak, half_matmul(*shape)) for shape in seconds]
        self._shapes = np.log(np.array(list(seconds), dtype=float))
        self._logs = np.log(np.array(list(seconds.values())) / np.array(modelled))

    def correction(self, m: float, n: float, k: float) -> Correction:
        """The correction of a matmul of that shape."""
        off = np.linalg.norm(self._shapes - np.log([m, n, k]), axis=1)
        near = np.argsort(off, kind="stable")[:NEIGHBOURS]
        if off[near[0]] > REACH:
            return Correction(1.0, None)
        weights = 1 / (off[near] + NEAREST) ** 2
        weights /= weights.sum()
        mean = float(weights @ self._logs[near])
        spread = float(np.sqrt(weights @ (self._logs[near] - mean) ** 2))
        return Correction(math.exp(mean), spread)


class PublishedCosts:
    """The analytic model with its matmuls put right by the device's published table.

    All BLAS forms of a shape get the correction of the form that was measured, and a run's lower
    clock is that of the analytic model. Not modelled: differences of library versions.
    """

    def __init__(
        self, machine: Machine, devices: int = 1, kernels: Kernels = PLAIN_KERNELS
    ) -> None:
        table = matmuls_of(machine.device.name)
        if table is None:
            raise MachineError(
                f"no table of kernels was published for {machine.name}'s {machine.device.name}; "
                "there are tables for A100, H100 and GH200"
            )
        self._analytic = AnalyticCosts(machine, devices, kernels)
        self._table = MatmulTable(machine, table.seconds)
        self._known: dict[tuple[float, float, float], float] = {}

    def host_s(self, op: Op) -> float:
        """As the kernels say."""
        return self._analytic.host_s(op)

    def seconds(self, op: Op) -> float:
        """Seconds that the op takes."""
        seconds = self._analytic.seconds(op)
        tabled = op.kind == "matmul" and op.dtype in ("bf16", "fp16")
        if not seconds or not tabled:
            return seconds
        shape = op.attributes["m"], op.attributes["n"], op.attributes["k"]
        if shape not in self._known:
            self._known[shape] = self._table.correction(*shape).factor
        return seconds * self._known[shape]


def half_matmul(m: int, n: int, k: int) -> Op:
    """A matmul of that shape in 16 bits, its operands as they are."""
    return Op("linear", "matmul", (), (), nbytes=HALF * (m * n + n * k + m * k),
              flops=2 * m * n * k, attributes={"form": "NN", "m": m, "n": n, "k": k})  # fmt: skip
