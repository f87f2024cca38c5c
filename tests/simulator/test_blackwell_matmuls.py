"""Blackwell's matmuls against those that were measured on a B200."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.costs.analytic import GROUPED
from tools.fit_matmuls import b200, error, rows_of
from topologies.machine_files import load_machine


def test_matmuls_that_no_constant_is_fitted_to_are_met_as_the_fit_says() -> None:
    machine, rows = b200(), rows_of("matmul")[1::2]
    assert len(rows) == 257
    assert error(machine, machine.device.matmul, rows) == pytest.approx(0.106, abs=2e-3)
    of_hopper = load_machine("dgx-h100").device.matmul
    assert error(machine, of_hopper, rows) > 0.2


def test_grouped_matmuls_are_met_by_the_rows_of_each_expert() -> None:
    machine, rows = b200(), rows_of(GROUPED)
    own = machine.device.matmul
    assert len(rows) == 108
    assert error(machine, own, rows) == pytest.approx(0.148, abs=2e-3)
    assert error(machine, replace(own, grouped=0.0), rows) > 0.28
