"""Segments of racks: how many of a rack's trays of four a job gets."""

from __future__ import annotations

import numpy as np
import pytest

from topologies.errors import MachineError, TooFewDevicesError
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.placement import contiguous, with_room
from topologies.placement_names import parse_placement


def racks() -> Machine:
    return load_machine("gb200-nvl72")


def ranks_of_nodes(machine: Machine, ranks: int, policy: str = "scheduler") -> list[int]:
    counts = np.bincount(parse_placement(policy, machine, ranks).node)
    return [int(each) for each in counts]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (64, [64]),
        (72, [72]),
        (128, [64, 64]),  # 32 trays: two segments of 16
        (144, [72, 72]),
        (256, [64, 64, 64, 64]),
        (160, [40, 40, 40, 40]),  # 40 trays: of their divisors 10 is the largest that fits
        (76, [72, 4]),  # 19 trays: segments of one, as many as fit in each rack
    ],
)
def test_a_job_gets_the_largest_equal_segments_that_racks_hold(
    ranks: int, expected: list[int]
) -> None:
    assert ranks_of_nodes(racks(), ranks) == expected
    assert np.array_equal(
        contiguous(racks(), ranks).node, parse_placement("scheduler", racks(), ranks).node
    )


def test_a_rack_takes_as_many_segments_as_fit() -> None:
    machine = with_settings(racks(), {"node.segment": 8})
    assert ranks_of_nodes(machine, 96) == [64, 32]
    assert ranks_of_nodes(with_settings(racks(), {"node.segment": 1}), 96) == [72, 24]


def test_a_segment_must_divide_the_jobs_trays() -> None:
    machine = with_settings(racks(), {"node.segment": 18})
    with pytest.raises(MachineError, match="try 1, 2, 4, 8, 16"):
        contiguous(machine, 256)


def test_machines_without_racks_have_no_segments() -> None:
    assert load_machine("dgx-h100").segments(64).trays == 0
    with pytest.raises(MachineError, match="racks"):
        with_settings("dgx-h100", {"node.segment": 2})


def test_a_machine_of_few_racks_is_filled_where_equal_segments_need_more() -> None:
    four = load_machine("4x72xGB200,72xNDR")
    assert ranks_of_nodes(four, 256) == [64] * 4
    assert ranks_of_nodes(four, 280) == [72, 72, 72, 64]  # 14 of 70 trays would need five racks
    with pytest.raises(TooFewDevicesError):
        contiguous(four, 289)


def test_a_machine_of_any_size_grows_to_the_racks_that_segments_need() -> None:
    ranks = 64 * 129  # 129 segments of 16 trays, and the machine has 128 racks
    assert ranks <= racks().devices
    assert with_room(racks(), ranks).nodes == 129


def test_a_node_of_trays_is_a_whole_number_of_them() -> None:
    assert load_machine("4x64xGB200,64xNDR").node.tray == 4
    assert load_machine("4x4xGB200,4xNDR").segments(16).trays == 0
    with pytest.raises(MachineError, match="tray"):
        with_settings(racks(), {"node.tray": 5})


def test_listed_racks_are_filled_by_the_same_rule() -> None:
    assert ranks_of_nodes(racks(), 256, "hosts:rack[1-4]") == [0, 64, 64, 64, 64]
