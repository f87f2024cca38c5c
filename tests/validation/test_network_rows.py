"""Rows of measured collectives: what payload a table means, on which nodes, and what counts."""

from __future__ import annotations

from typing import Any

import pytest

from validation.network_tables import Measured, MeasuredRow, measured, read_tables
from validation.network_validation import Comparison, Point, is_artefact, overall

MIB = 2**20
TABLE = read_tables()["frontier_all_gather_all_gather_3_nccl"]  # in nodes of 8, gathered sizes


def row(**changes: Any) -> MeasuredRow:
    """The row of a table with these changes of Frontier's."""
    found = measured("new", {**TABLE, **changes}, {"frontier": 8})
    assert isinstance(found, Measured)
    (first,) = found.rows
    return first


def test_a_group_fills_as_many_nodes_as_it_needs_the_last_one_in_part() -> None:
    assert row(rows=[[12, MIB, 1e-3]], devices_per_node=8).nodes == 2
    assert row(rows=[[4, MIB, 1e-3]], devices_per_node=8).nodes == 1
    assert row(rows=[[12, MIB, 1e-3]], devices_per_node=1).nodes == 12
    assert row(rows=[[12, MIB, 1e-3]], nodes=3).nodes == 3


@pytest.mark.parametrize("meaning", ["bytes per rank pair", "bytes contributed per rank"])
def test_a_rate_is_that_of_the_size_that_stands_beside_it(meaning: str) -> None:
    """16 ranks of 1 MiB at 2 MiB/s: half a second, for a payload of 16 MiB."""
    columns = ["devices", "bytes", "bytes_per_second"]
    found = row(columns=columns, rows=[[16, MIB, 2 * MIB]], size_meaning=meaning)
    assert (found.seconds, found.size_bytes, found.payload_bytes) == (0.5, MIB, 16 * MIB)


def sized(devices: int, nbytes: float) -> MeasuredRow:
    return MeasuredRow(devices, -(-devices // 8), nbytes, nbytes, 1e-3)


def test_only_the_first_size_of_128_gcds_and_more_of_frontier_shows_a_library_starting_up() -> None:
    every = tuple(sized(devices, size) for devices in (64, 128, 256) for size in (MIB, 2 * MIB))
    ours, theirs, alone = (
        Measured("t", variant, "all_gather", rows)
        for variant, rows in (
            ("frontier:rccl-default", every),
            ("perlmutter", every),
            ("frontier", every[2:4]),
        )
    )
    found = [each for each in every if is_artefact(ours, each)]
    assert found == [sized(128, MIB), sized(256, MIB)]
    assert not any(is_artefact(theirs, each) for each in theirs.rows)
    assert [each for each in alone.rows if is_artefact(alone, each)] == [sized(128, MIB)]
    from_less = Measured("t", "frontier", "all_gather", (sized(128, MIB / 2), sized(128, MIB)))
    assert [is_artefact(from_less, each) for each in from_less.rows] == [True, False]


def compared(name: str, *errors: tuple[float, bool]) -> Comparison:
    points = tuple(Point(sized(8, MIB), 1e-3 * (1 + error), fitted) for error, fitted in errors)
    return Comparison(name, points=points)


def test_held_out_rows_are_those_that_the_fit_did_not_see() -> None:
    found = compared("t", (0.1, True), (-0.3, True), (0.5, False))
    assert found.fitted_mape == pytest.approx(0.2)
    assert found.heldout_mape == pytest.approx(0.5)
    assert found.mape == pytest.approx(0.3)
    record = found.as_dict()
    assert record["bias"] == pytest.approx(0.1)
    assert record["median_error"] == pytest.approx(0.3)


def test_the_worst_row_may_be_one_that_is_predicted_too_fast() -> None:
    found = compared("t", (0.1, False), (-0.6, False)).as_dict()
    assert found["worst"] == pytest.approx(-0.6)


def test_the_mean_over_tables_weighs_a_small_one_as_a_large_one() -> None:
    tables = [compared("few", (0.5, False)), compared("many", *[(0.1, False)] * 9)]
    assert overall([*tables, Comparison("none", reason="no rows")]) == pytest.approx(0.3)
    assert overall([]) is None
