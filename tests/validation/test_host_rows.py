"""The host validation's figures: relative to what was measured, and nothing cancels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from topologies.machine import Machine
from topologies.machine_files import load_machine
from validation.host_validation import CELLS, HostRow, mape, too_wide
from workload.plan_text import parse_plan


def test_an_error_is_relative_to_the_measured_step_and_means_do_not_cancel() -> None:
    plan = parse_plan("dp=2", batch=2)
    slow, fast = (
        HostRow("tiny-1m", plan, predicted_s, 1.0, 100, 101) for predicted_s in (3.0, 0.5)
    )
    assert (slow.error, fast.error) == (2.0, -0.5)
    assert slow.as_dict()["error"] == 2.0
    assert mape([slow.error, fast.error]) == 1.25


def of_devices(count: int) -> Machine:
    machine = load_machine("host")
    assert machine.nodes == 1
    return replace(machine, node=replace(machine.node, devices=count))


@pytest.mark.parametrize(("devices", "left_out"), [(1, 26), (2, 7), (4, 0)])
def test_steps_of_more_ranks_than_there_are_devices_are_left_out(
    devices: int, left_out: int
) -> None:
    ranks = [parse_plan(text, batch=batch).grid.ranks for _, batch, text in CELLS]
    assert sum(each > devices for each in ranks) == left_out
    assert too_wide(of_devices(devices)) == left_out
