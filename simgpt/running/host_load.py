"""What is said where a host is busy with other things while something is measured on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simgpt.options import note

# The share of the measured steps in which a rank waited for a core. Measured with two ranks on 2
# cores: 6 to 8 % where nothing else ran, 37 % beside a load of 1.4.
WAITED = 0.15
FAR = 1.5  # measured over predicted, or the other way round


def warn_if_busy() -> None:
    """Say on stderr that other processes load this host, if they do; nothing else is told of it."""
    from executor.calibrating.conditions import Conditions

    now = Conditions.now()
    if now.is_busy:
        note(
            f"{now.load_words}: measured times may be too long; calibrate again on a quiet machine"
        )


def disturbed(record: Mapping[str, Any]) -> bool:
    """Whether other processes made a run's steps longer, so that they are no measure of a
    prediction; more ranks than cores wait for each other."""
    from executor.calibrating.conditions import Conditions

    waited = bool(record["waited_share"] > WAITED)
    return waited and record["ranks"] <= Conditions.now().cores


def warn_of_measured(record: Mapping[str, Any], *, calibrated: bool) -> None:
    """Say on stderr of a run's record that other processes lengthened its steps, or else that the
    calibration it was predicted with does not describe this machine as it is now."""
    from executor.calibrating.conditions import Conditions

    now = Conditions.now()
    if disturbed(record):
        note(
            f"ranks waited for a core in {record['waited_share']:.0%} of the measured steps' time, "
            f"{now.load_words}: other processes made these steps longer; run again on a quiet "
            "machine"
        )
        return
    predicted = record["predicted_step_s"]
    if not calibrated or predicted is None:
        return
    ratio = record["step_s"] / predicted
    if not 1 / FAR < ratio < FAR:
        note(
            f"measured steps took {ratio:.1f} times the predicted time: the calibration may not "
            "describe this machine as it is now; --recalibrate measures it anew"
        )
