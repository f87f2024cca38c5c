"""Measured peaks that move the memory of predictions near them, in numbers worked out by hand."""

from __future__ import annotations

import pytest

from simulator.step_memory import Memory, Room
from simulator.uncertainty.anchored_memory import (
    ALLOCATED,
    DEVICE,
    RESERVED,
    MemoryAnchoring,
    WeighedPeak,
    anchor_peak,
    memory_anchoring,
)
from simulator.uncertainty.fitting import Kind, peak_errors

# 60 bytes of tensors, 40 of them activations, 4 of libraries, 6 of the driver, of 100.
MEMORY = Memory(
    peak_bytes=60,
    capacity_bytes=90,
    parts={"parameters": 20, "activations": 40},
    op="op",
    device_bytes=100,
    library_bytes=4,
    stage_peak_bytes=(60, 30),
)


def anchoring(*found: tuple[str, int, float]) -> MemoryAnchoring:
    peaks = [
        WeighedPeak(f"run {n}", anchor_peak(MEMORY, measure, nbytes), weight, weight)
        for n, (measure, nbytes, weight) in enumerate(found)
    ]
    by = memory_anchoring(peaks)
    assert by is not None
    return by


def test_what_was_allocated_multiplies_the_activations() -> None:
    """84 measured, 60 + 4 predicted: 20 more on 40 of activations."""
    after = anchoring((ALLOCATED, 84, 1.0)).of(MEMORY)
    assert dict(after.parts) == {"parameters": 20, "activations": 60}
    assert (after.peak_bytes, after.capacity_bytes) == (80, 90)
    assert after.stage_peak_bytes == (80, 40)


def test_what_was_reserved_or_held_lies_beside_tensors() -> None:
    """70 reserved are 6 more than 64; of 78 that the device held 70 were predicted."""
    for measure, nbytes, beside in ((RESERVED, 70, 6), (DEVICE, 78, 8)):
        after = anchoring((measure, nbytes, 1.0)).of(MEMORY)
        assert (after.peak_bytes, after.capacity_bytes) == (60, 90 - beside)
        assert after.reserve_bytes == 10 + beside


def test_an_anchor_that_is_farther_away_moves_less() -> None:
    assert anchoring((RESERVED, 84, 0.5)).beside_bytes == 10
    assert anchoring((ALLOCATED, 84, 0.5)).factor == pytest.approx(1.5**0.5)


def test_several_anchors_count_by_their_shares() -> None:
    assert anchoring((RESERVED, 74, 1.0), (RESERVED, 64, 1.0)).beside_bytes == 5


def test_a_peak_that_is_too_far_off_is_kept_within_limits_and_says_so() -> None:
    """Twice the activations, and 30 of the device's 100 bytes."""
    far = anchoring((ALLOCATED, 1000, 1.0), (RESERVED, 1000, 1.0))
    assert (far.factor, far.beside_bytes) == (2.0, 30)
    assert [each["kept_within_limits"] for each in far.as_dict()["peaks"]] == [True, True]
    near = anchoring((ALLOCATED, 70, 1.0), (RESERVED, 70, 1.0))
    assert [each["kept_within_limits"] for each in near.as_dict()["peaks"]] == [False, False]


def test_the_room_of_a_search_leaves_out_no_anchored_byte() -> None:
    """Every plan whose peak is within it fits with its activations multiplied too."""
    by = anchoring((ALLOCATED, 84, 1.0), (RESERVED, 70, 1.0))
    assert by.room(Room(90)).capacity_bytes == int((90 - 6) / 1.5)
    below = anchoring((ALLOCATED, 54, 1.0))
    assert below.factor == pytest.approx(0.75)
    assert below.room(Room(90)).capacity_bytes == 90


def test_a_measured_neighbour_narrows_what_may_be_off() -> None:
    blind = peak_errors(Kind("unknown", "unknown", experts=False))

    def width(weight: float) -> float:
        errors = anchoring((RESERVED, 64, weight)).room(Room(90, blind)).errors
        return errors.quantile(0.9) - errors.quantile(0.1)

    assert width(1.0) < width(0.5) < blind.quantile(0.9) - blind.quantile(0.1)
