"""What a calibrated machine measured, a setting does not silently fail to change."""

from __future__ import annotations

import dataclasses

import pytest

from tests.messages import names
from topologies.errors import MachineError
from topologies.hardware.profile import MeasuredTable, Profile
from topologies.machine_files import load_machine, with_settings

TABLE = MeasuredTable(("ranks", "bytes", "seconds"), ((2.0, 1024.0, 1e-3),))
PROFILE = Profile(kernels={"add@fp32": TABLE}, collectives={"all_gather": TABLE})
CALIBRATED = dataclasses.replace(load_machine("host"), profile=PROFILE)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("device.matmul.e_max", 0.5),
        ("device.peak_flops.fp32", "2 TFLOP/s"),
        ("node.links.bandwidth", "0.5x"),
    ],
)
def test_a_setting_that_measured_tables_override_is_refused(key: str, value: object) -> None:
    with pytest.raises(MachineError, check=names(key)):
        with_settings(CALIBRATED, {key: value})


def test_what_is_not_measured_may_still_be_set() -> None:
    changed = with_settings(CALIBRATED, {"device.memory": "8 GB"})
    assert changed.device.memory_bytes == 8e9
