"""What stages of pipelines hold in flight, counted by hand; its bounds are in `test_bounds.py`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.search.bounds.in_flight import Moment, _undominated, moments
from workload.op import NONE
from workload.pipeline.schedule import FORWARD, WEIGHT, slots
from workload.pipeline.slot import INPUT

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
    assert moments(schedule, stage, 4, 8, (EXPERTS,), 2) == found


def test_two_chunks_of_a_stage_hold_five_on_two_stages() -> None:
    """Two warm-up turns of two, and one forward pass more: three of the first chunk and two of the
    second, or four and one; a pass runs back through either chunk."""
    three, four = (3, 2, 0, 0), (4, 1, 0, 0)
    found = moments("1f1b", 0, 2, 4, (DENSE, EXPERTS), 2)
    assert found == ((three, 0), (three, 1), (four, 0), (four, 1))


def test_many_micro_batches_are_held_as_few_are() -> None:
    for schedule in ("1f1b", "zb-h1", "zb-2p"):
        few = moments(schedule, 0, 2, 6, (EXPERTS,), 2)
        assert moments(schedule, 0, 2, 80, (EXPERTS,), 2) == few
    many = moments("zb-2p", 1, 2, 80, (EXPERTS,), 2)  # depends on others' progress
    assert many == moments("zb-2p", 1, 2, 14, (EXPERTS,), 2) != ()


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-1p", "zb-2p"])
def test_of_few_micro_batches_is_known_what_every_stage_holds_of_many(schedule: str) -> None:
    """The most that are in flight, and the most that wait for gradients of weights, counted over
    all slots of 40 micro-batches on 4 stages."""
    for stage in range(4):
        levels = [(0, 0)]
        for slot in slots(schedule, stage, 4, 40):
            flight, waiting = levels[-1]
            more, later = {FORWARD: (1, 0), INPUT: (-1, 1), WEIGHT: (0, -1)}[slot.work]
            levels.append((flight + more, waiting + later))
        found = [counts for counts, _ in moments(schedule, stage, 4, 40, (EXPERTS,), 2)]
        assert max(flight for _, flight, *_ in found) == max(flight for flight, _ in levels)
        assert max(waiting for *_, waiting in found) == max(
            waiting + (slot.work == WEIGHT)
            for (_, waiting), slot in zip(levels[1:], slots(schedule, stage, 4, 40), strict=True)
        )


FEW = st.integers(0, 3)
DRAWN = st.sets(st.tuples(st.tuples(FEW, FEW, FEW, FEW), st.integers(NONE, 3)), max_size=30)


@given(DRAWN)
def test_of_any_moments_those_stay_at_which_no_other_holds_as_much(found: set[Moment]) -> None:
    """Compared with each other all, not in one turn: another holds as much of every count, beside a
    pass of the same kind, or of any kind where there is none. So none of the largest is lost."""

    def holds_as_much(other: Moment, one: Moment) -> bool:
        counts = all(a >= b for a, b in zip(other[0], one[0], strict=True))
        return counts and one != other and one[1] in (NONE, other[1])

    expected = [one for one in sorted(found) if not any(holds_as_much(o, one) for o in found)]
    assert list(_undominated(found)) == expected
