"""The probability that a run fits: from a handful of peaks whose distribution is known by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.stacks import load_stack
from simulator.uncertainty.fitting import (
    DOES_NOT_FIT,
    EXACT,
    FITS,
    GRID,
    SURE,
    TIGHT,
    UNLIKELY,
    Kind,
    MeasuredPeak,
    MeasuredPeaks,
    PeakErrors,
    kind_of,
    measured_peaks,
    peak_errors,
    shipped_peaks,
    verdict_of,
)

OURS, OTHERS = Kind("a", "a", experts=False), Kind("b", "b", experts=False)


def peaks(*needs: float, kind: Kind = OURS, source: str = "s") -> list[MeasuredPeak]:
    return [MeasuredPeak(source, kind, need) for need in needs]


def errors(*needs: float) -> PeakErrors:
    return MeasuredPeaks(peaks(*needs), blur=0.001).errors_of(OURS)


def test_half_of_the_runs_fit_that_need_ten_percent_more_or_less() -> None:
    """Runs that need 0.9 and 1.1 times their predicted peak: at a peak of 100 of 100 one fits."""
    found = errors(math.log(0.9), math.log(1.1))
    assert found.p_fits(100, 100) == pytest.approx(0.5, abs=1e-3)
    assert found.p_fits(100, 115) > 0.99
    assert found.p_fits(115, 100) < 0.01


def test_a_blur_has_tails_that_fall_with_the_square() -> None:
    """Student's t with two degrees of freedom: F(-x) is 1 / (2 x^2) far out, of a scale of 0.01."""
    found = MeasuredPeaks(peaks(0.0), blur=0.01).errors_of(OURS)
    for x in (0.2, 0.4, 0.8):
        assert found.share_below(-x) == pytest.approx(1 / (2 * (x / 0.01) ** 2), rel=0.01)


def test_runs_of_another_family_of_stacks_count_less() -> None:
    """At a distance of 2 e^-2 as much: 0.135 of 1.135."""
    rows = [*peaks(0.1), *peaks(-0.1, kind=OTHERS, source="t")]
    near = MeasuredPeaks(rows, blur=0.001).errors_of(OURS)
    assert near.share_below(0.0) == pytest.approx(math.exp(-2) / (1 + math.exp(-2)), abs=1e-3)


def test_all_runs_of_a_source_count_as_much_as_one() -> None:
    rows = [*peaks(*[0.1] * 50), *peaks(-0.1, source="t")]
    assert MeasuredPeaks(rows, blur=0.001).errors_of(OURS).share_below(0.0) == pytest.approx(
        0.5, abs=1e-3
    )


def test_a_source_that_is_left_out_says_nothing() -> None:
    rows = [*peaks(0.1), *peaks(-0.1, source="t")]
    assert MeasuredPeaks(rows, blur=0.001).errors_of(OURS, without="s").share_below(0.0) > 0.99


def test_a_run_with_a_measured_neighbour_is_compared_with_the_others_of_its_source() -> None:
    """Both sources are far off, each alike: 0.5 and -0.5, but 0.02 from run to run."""
    rows = [*peaks(0.5, 0.52), *peaks(-0.5, -0.52, source="t")]
    known = MeasuredPeaks(rows, blur=0.001)
    within = known.errors_within_a_source()
    assert (within.quantile(0.05), within.quantile(0.95)) == pytest.approx((-0.02, 0.02), abs=0.011)
    blind = known.errors_of(OURS)
    mixed = blind.mixed(within, 0.8)
    assert mixed.share_below(0.1) == pytest.approx(
        0.2 * blind.share_below(0.1) + 0.8 * within.share_below(0.1)
    )


@given(
    needs=st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=9),
    capacity=st.integers(10**6, 10**12),
    p=st.floats(0.02, 0.98),
)
def test_the_largest_peak_that_fits_is_the_inverse(
    needs: list[float], capacity: int, p: float
) -> None:
    found = errors(*needs)
    most = found.most_bytes(capacity, p)
    assert found.p_fits(most, capacity) >= p - 1e-4
    assert found.p_fits(most + 2 + most // 10**6, capacity) <= p + 1e-4
    assert found.most_bytes(capacity, SURE) <= found.most_bytes(capacity, UNLIKELY)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_larger_peak_is_no_more_likely_to_fit(one: int, other: int) -> None:
    found, capacity = errors(-0.2, 0.0, 0.3), 10**5
    small, large = sorted((one, other))
    assert found.p_fits(small, capacity) >= found.p_fits(large, capacity)


def test_what_is_counted_fits_to_the_byte() -> None:
    assert (EXACT.most_bytes(1000, SURE), EXACT.most_bytes(1000, UNLIKELY)) == (1000, 1000)
    assert (EXACT.p_fits(1000, 1000), EXACT.p_fits(1001, 1000)) == (1, 0)


def test_verdicts_lie_between_the_limits() -> None:
    words = [verdict_of(peak, 90, 120) for peak in (90, 91, 120, 121)]
    assert words == [FITS, TIGHT, TIGHT, DOES_NOT_FIT]


def test_shipped_peaks_say_more_of_a_stack_that_was_measured() -> None:
    """Megatron-Core's own tests narrow its distribution; of some stacks there are none at all."""

    def width(name: str) -> float:
        found = peak_errors(kind_of(load_stack(name), experts=False))
        assert found.log == GRID
        return found.quantile(SURE) - found.quantile(UNLIKELY)

    assert 0 < width("megatron-core") < width("axonn")


def test_only_what_the_allocator_gave_out_says_what_a_run_needs() -> None:
    """What was reserved, or held by the device, bounds it from above."""
    kept = {row.measure for row in measured_peaks().rows}
    assert kept == {"allocated"} < {row.measure for row in shipped_peaks()}
