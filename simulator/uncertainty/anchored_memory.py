"""Measured peaks that anchor the predicted memory of others like them.

The kind of measure decides what is corrected. An *allocated* peak is tensors and the workspaces of
libraries, so its difference from the prediction becomes a factor on activations: the bytes of
parameters, gradients and optimizer states are counted exactly. A *reserved* peak, or all that the
device held (`nvidia-smi`), includes what lies beside tensors, so its difference is subtracted from
the capacity for tensors. The anchor's weight, which falls with distance as for times
(`anchors.py`), is the exponent of the factor and multiplies the bytes. The factor is limited to
`FACTORS` and the bytes to `BESIDE` of the device's memory: beyond these the anchor is more likely
to be misread than the model to be wrong.

P(fits) of an anchored run mixes two distributions of `fitting.py`: with the anchor's weight that of
runs of which another run of the same source was measured, and for the rest the unanchored one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from typing import TYPE_CHECKING, Any, NamedTuple

from simulator.uncertainty.fitting import EXACT, PeakErrors, peak_errors_within_a_source
from topologies.records import record

if TYPE_CHECKING:
    from simulator.step_memory import Memory, Room

ALLOCATED, RESERVED, DEVICE = "allocated", "reserved", "nvidia-smi"
MEASURES = ALLOCATED, RESERVED, DEVICE
ACTIVATIONS = "activations"
FACTORS = 0.5, 2.0  # on activations
BESIDE = 0.3  # of a device's memory that may lie beside tensors, or be found not to


@record
class AnchorPeak:
    """A measured peak of a device, of what it is (one of `MEASURES`), and what is predicted of the
    same: the peak of tensors, activations of it, and what lies beside: workspaces of libraries, and
    the machine's reserve, of the device's memory."""

    measure: str
    measured_bytes: int
    peak_bytes: int
    activations_bytes: int
    library_bytes: int
    reserve_bytes: int
    device_bytes: int

    @property
    def predicted_bytes(self) -> int:
        """What is predicted in the terms of the measure."""
        tensors = self.peak_bytes + self.library_bytes
        return tensors + (self.reserve_bytes if self.measure == DEVICE else 0)

    @property
    def factor(self) -> float:
        """By which activations are multiplied for the peak to be the measured one, kept within
        `FACTORS`; 1 unless tensors were measured."""
        if self.measure != ALLOCATED or not self.activations_bytes:
            return 1.0
        more = (self.measured_bytes - self.predicted_bytes) / self.activations_bytes
        return min(max(1 + more, FACTORS[0]), FACTORS[1])

    @property
    def beside_bytes(self) -> int:
        """What lies beside tensors and is not predicted, kept within `BESIDE`."""
        if self.measure == ALLOCATED:
            return 0
        most = int(BESIDE * self.device_bytes)
        return min(max(self.measured_bytes - self.predicted_bytes, -most), most)

    @property
    def is_kept(self) -> bool:
        """Whether the anchor's own correction is a limit's and not the measured one."""
        at_most = self.beside_bytes != self.measured_bytes - self.predicted_bytes
        return self.factor in FACTORS or (self.measure != ALLOCATED and at_most)


def anchor_peak(memory: Memory, measure: str, measured_bytes: float) -> AnchorPeak:
    """A measured peak beside the predicted memory of its run."""
    return AnchorPeak(
        measure,
        int(measured_bytes),
        memory.peak_bytes,
        memory.parts.get(ACTIVATIONS, 0),
        memory.library_bytes,
        memory.reserve_bytes - memory.library_bytes,
        memory.device_bytes,
    )


class WeighedPeak(NamedTuple):
    """An anchor's peak, the weight of its distance, and its share among several."""

    name: str
    peak: AnchorPeak
    weight: float
    share: float


@record
class MemoryAnchoring:
    """What anchors make of a question's memory: the `factor` on activations, what lies beside
    tensors in `beside_bytes`, and the `weight` of the narrower distribution of P(fits)."""

    factor: float
    beside_bytes: int
    weight: float
    peaks: tuple[WeighedPeak, ...]

    def of(self, memory: Memory) -> Memory:
        """The memory of a plan, anchored; peaks of other stages grow as the largest does."""
        activations = memory.parts.get(ACTIVATIONS, 0)
        more = round((self.factor - 1) * activations)
        peak_bytes = memory.peak_bytes + more
        share = peak_bytes / memory.peak_bytes if memory.peak_bytes else 1.0
        parts = {**memory.parts}
        if activations:
            parts[ACTIVATIONS] = activations + more
        return replace(
            memory,
            peak_bytes=peak_bytes,
            parts=parts,
            capacity_bytes=memory.capacity_bytes - self.beside_bytes,
            stage_peak_bytes=tuple(round(share * each) for each in memory.stage_peak_bytes),
            errors=self._narrowed(memory.errors),
        )

    def room(self, room: Room) -> Room:
        """The room for plans of which only the predicted peak is known, on the safe side: a factor
        above 1 is applied to the whole peak, one below 1 to none of it."""
        capacity = int((room.capacity_bytes - self.beside_bytes) / max(self.factor, 1.0))
        return replace(room, capacity_bytes=capacity, errors=self._narrowed(room.errors))

    def _narrowed(self, errors: PeakErrors) -> PeakErrors:
        if errors == EXACT:
            return errors
        return errors.mixed(peak_errors_within_a_source(), self.weight)

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {
            "activations_factor": self.factor,
            "beside_bytes": self.beside_bytes,
            "weight": self.weight,
            "peaks": [
                {
                    "anchor": each.name,
                    "peak_of": each.peak.measure,
                    "measured_bytes": each.peak.measured_bytes,
                    "predicted_bytes": each.peak.predicted_bytes,
                    "kept_within_limits": each.peak.is_kept,
                }
                for each in self.peaks
            ],
        }


def memory_anchoring(peaks: Sequence[WeighedPeak]) -> MemoryAnchoring | None:
    """What some anchors make of a question's memory; None where none of them has a peak."""
    if not peaks:
        return None
    tensors = [each for each in peaks if each.peak.measure == ALLOCATED]
    others = [each for each in peaks if each.peak.measure != ALLOCATED]
    factor = exp(_mean([(each, log(each.peak.factor)) for each in tensors]))
    beside = round(_mean([(each, each.peak.beside_bytes) for each in others]))
    return MemoryAnchoring(factor, beside, max(each.weight for each in peaks), tuple(peaks))


def _mean(found: Sequence[tuple[WeighedPeak, float]]) -> float:
    """The mean by shares, times the largest weight; 0 of none."""
    if not found:
        return 0.0
    total = sum(each.share for each, _ in found)
    mean = sum(each.share * value for each, value in found) / total
    return mean * max(each.weight for each, _ in found)
