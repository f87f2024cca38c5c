"""What stages of pipelines hold in flight, counted by hand; its bounds are in `test_bounds.py`."""

from __future__ import annotations

import pytest

from simulator.search.bounds.in_flight import Moment, moments
from workload.op import NONE

DENSE, EXPERTS = (0,), (1,)


@pytest.mark.parametrize(
    ("schedule", "stage", "found"),
    [
        ("1f1b", 0, (((0, 4, 0, 0), 1),)),
        ("1f1b", 3, (((0, 1, 0, 0), 1),)),
        ("gpipe", 2, (((0, 8, 0, 0), 1),)),
        ("zb-h1", 0, (((0, 3, 0, 1), 3), ((0, 4, 0, 0), NONE))),
        ("zb-h1", 3, (((0, 0, 0, 4), 3), ((0, 1, 0, 3), NONE))),
    ],
)
def test_four_stages_hold_what_eight_micro_batches_leave(
    schedule: str, stage: int, found: tuple[Moment, ...]
) -> None:
    """1F1B holds a micro-batch for every stage behind and its own, GPipe all; with split passes the
    last stage keeps three, and for a moment four, for gradients of weights."""
    assert moments(schedule, stage, 4, 8, (EXPERTS,)) == found


def test_two_chunks_of_a_stage_hold_five_on_two_stages() -> None:
    """Two warm-up turns of two, and one forward pass more: three of the first chunk and two of the
    second, or four and one; a pass runs back through either chunk."""
    three, four = (3, 2, 0, 0), (4, 1, 0, 0)
    found = moments("1f1b", 0, 2, 4, (DENSE, EXPERTS))
    assert found == ((three, 0), (three, 1), (four, 0), (four, 1))


def test_many_micro_batches_are_held_as_few_are() -> None:
    for schedule in ("1f1b", "zb-h1", "zb-2p"):
        assert moments(schedule, 0, 2, 80, (EXPERTS,)) == moments(schedule, 0, 2, 6, (EXPERTS,))
    many = moments("zb-2p", 1, 2, 80, (EXPERTS,))  # depends on others' progress
    assert many == moments("zb-2p", 1, 2, 14, (EXPERTS,)) != ()
