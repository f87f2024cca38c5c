"""In which order a sweep's rows are shown."""

from __future__ import annotations

import pytest

from simgpt.studies.evaluate import Row
from simgpt.studies.study_table import ranked


def row(
    number: int, flops: float, step_s: float, node_s: float, energy_j: float | None, peak: int
) -> Row:
    return {
        "id": number,
        "status": "ok",
        "prediction": {
            "step_s": step_s,
            "model_flops_per_s_per_device": flops,
            "memory": {"peak_bytes": peak},
            "cost": {"node_s_per_step": node_s, "energy_j_per_step": energy_j},
        },
    }


# Each order is another one of these three.
ROWS = [
    row(0, flops=3.0, step_s=4.0, node_s=4.0, energy_j=9.0, peak=200),
    row(1, flops=5.0, step_s=3.0, node_s=6.0, energy_j=None, peak=100),
    row(2, flops=4.0, step_s=2.0, node_s=5.0, energy_j=7.0, peak=300),
]


@pytest.mark.parametrize(
    ("order", "numbers"),
    [
        ("throughput", [1, 2, 0]),
        ("time", [2, 1, 0]),
        ("node-hours", [0, 2, 1]),
        ("energy", [2, 0, 1]),  # what nobody knows comes last
        ("memory", [1, 0, 2]),
        ("study", [0, 1, 2]),
    ],
)
def test_the_best_row_by_each_order_comes_first_and_what_cannot_run_last(
    order: str, numbers: list[int]
) -> None:
    cannot = [{"id": number, "status": "infeasible", "prediction": None} for number in (8, 9)]
    shown = ranked([cannot[0], *ROWS[::-1], cannot[1]], order)
    assert [each["id"] for each in shown] == [*numbers, 8, 9]
