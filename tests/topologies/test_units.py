"""Quantities enter as text with a unit and are SI inside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.messages import assert_names
from topologies.errors import SimgptError, UnitError
from topologies.files.units import UNITS, Unit, format_quantity, quantity


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("25 GB/s", "bytes/s", 25e9),
        ("191.5 TFLOP/s", "FLOP/s", 191.5e12),
        ("400TFLOP/s", "FLOP/s", 400e12),
        ("64 GiB", "bytes", 64 * 2**30),
        ("14.08 KiB", "bytes", 14.08 * 1024),
        ("40 GB", "bytes", 40e9),
        ("10 us", "s", 1e-5),
        ("6.65 µs", "s", 6.65e-6),
        ("350 ns", "s", 3.5e-7),
        ("2.7 kW", "W", 2700),
        ("1e-3 s", "s", 1e-3),
        (".5 W", "W", 0.5),
        ("200 Gbit/s", "bytes/s", 25e9),
        ("400Gbps", "bytes/s", 50e9),
        ("12 bit/s", "bytes/s", 1.5),
    ],
)
def test_prefixes_scale_to_si_without_rounding_errors(text: str, unit: Unit, value: float) -> None:
    assert quantity(text, unit) == value


@pytest.mark.parametrize(
    ("value", "unit", "named"),
    [
        (25, "bytes/s", ("25", "25 GB/s")),
        ("25", "bytes/s", ("25", "25 GB/s")),
        ("25 GB", "bytes/s", ("25 GB", "bytes/s", "25 GB/s")),
        ("10 Mis", "s", ("10 Mis", "s", "10 us")),
        ("4 GiFLOP/s", "FLOP/s", ("4 GiFLOP/s", "FLOP/s", "191.5 TFLOP/s")),
        (
            "200 Gb/s",
            "bytes/s",
            ("200 Gb/s", "200 Gbit/s", "200 GB/s"),
        ),
        ("8 Gibit/s", "bytes/s", ("8 Gibit/s", "bytes/s", "25 GB/s")),
        ("200 Gbit", "bytes", ("200 Gbit", "bytes", "64 GiB")),
        ("fast", "FLOP/s", ("fast", "191.5 TFLOP/s")),
        ("1e999 W", "W", ("1e999 W", "2.7 kW")),
    ],
)
def test_a_quantity_without_its_unit_is_refused_with_an_example(
    value: object, unit: Unit, named: tuple[str, ...]
) -> None:
    with pytest.raises(UnitError) as error:
        quantity(value, unit)
    assert_names(str(error.value), *named)


def test_unit_errors_end_a_command_with_status_2() -> None:
    assert issubclass(UnitError, SimgptError)
    assert UnitError.exit_code == 2


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (25e9, "bytes/s", "25 GB/s"),
        (1.32e-5, "s", "13.2 us"),
        (9.999e-4, "s", "1 ms"),
        (90.0, "s", "90 s"),
        (191.5e12, "FLOP/s", "192 TFLOP/s"),
        (0.0, "s", "0 s"),
        (2700.0, "W", "2.7 kW"),
        (0.5, "bytes", "0.5 B"),
    ],
)
def test_quantities_are_shown_with_the_prefix_that_fits(
    value: float, unit: Unit, text: str
) -> None:
    assert format_quantity(value, unit) == text


def test_memory_can_be_shown_in_binary_prefixes() -> None:
    assert format_quantity(64 * 2**30, "bytes", binary=True) == "64 GiB"


@given(st.floats(1e-12, 1e20), st.sampled_from(UNITS))
def test_what_is_shown_reads_back_to_three_digits(value: float, unit: Unit) -> None:
    assert quantity(format_quantity(value, unit), unit) == pytest.approx(value, rel=0.006)
