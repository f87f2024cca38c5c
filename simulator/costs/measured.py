"""Compute costs measured on the device at hand, op by op with their real shapes."""

from __future__ import annotations

from collections.abc import Mapping

from topologies.errors import MachineError
from workload.kinds import KINDS, Costs
from workload.lowering.distinct import signature
from workload.op import Op


class MeasuredCosts:
    """The seconds of each distinct op; copies from and to the host's memory, which were not
    measured, go at `host_bytes_per_s`.

    Not modelled: whatever differs between a kernel measured alone and the same kernel between
    others (caches, clocks).
    """

    def __init__(self, seconds: Mapping[str, float], host_bytes_per_s: float) -> None:
        self._seconds = seconds
        self._host_bytes_per_s = host_bytes_per_s

    def host_s(self, op: Op) -> float:
        """Measured times have the host's in them."""
        return 0.0

    def seconds(self, op: Op) -> float:
        """Seconds that the op took; a MachineError names one that was not measured."""
        if KINDS[op.kind].costs is Costs.HOST_COPY:
            return op.nbytes / self._host_bytes_per_s
        found = self._seconds.get(signature(op))
        if found is None:
            raise MachineError(f"{op.name} ({op.kind}, {op.dtype}) was not measured")
        return found
