"""In which order a sweep's rows are shown."""

from __future__ import annotations

import pytest

from simgpt import tables
from simgpt.studies.evaluate import Row
from simgpt.studies.study_table import ranked
from tests.messages import assert_names
from tests.simgpt.face import simgpt


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


@pytest.mark.parametrize(
    ("width", "columns", "said"),
    [
        (100, ["dp", "step", "tokens/s", "MFU", "memory", "node-h"], []),
        (55, ["dp", "step", "MFU", "node-h"], ["memory"]),
    ],
)
def test_figures_that_have_no_room_are_named_and_energy_that_nobody_knows_is_no_column(
    width: int, columns: list[str], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "width", lambda: width)
    job = ("-m", "2x8xH100,8xNDR", "--plan", "tp=2,batch=16", "--sweep", "dp=2,4")
    lines = simgpt("predict", "tiny-1m", *job).out.splitlines()
    header = next(line for line in lines if line.split()[: len(columns)] == columns)
    assert set(figures := ["memory", "energy"]) & {*header.split()} == {*figures} & {*columns}
    left_out = [line for line in lines if "--json" in line]
    assert len(left_out) == len(said)
    for line, figure in zip(left_out, said, strict=True):
        assert_names(line, figure)


def test_rows_of_several_stacks_that_nobody_named_say_their_stack() -> None:
    """A plan with z runs under simgpt, one without under Megatron-Core, and neither is beside the
    other a matter of the plan alone."""
    job = ("-m", "2x8xH100,8xNDR", "-n", "16", "--batch", "16", "--sweep", "z=1,2")
    lines = simgpt("predict", "tiny-1m", *job).out.splitlines()
    header = next(line.split() for line in lines if "tokens/s" in line)
    assert header[:2] == ["z", "stack"]
    rows = [line.split()[1:3] for line in lines if line.split()[1:2] in (["1"], ["2"])]
    assert sorted(rows) == [["1", "megatron-core"], ["2", "simgpt"]]
    assert not [line for line in lines if "tell apart" in line]
    one = simgpt("predict", "tiny-1m", *job[:-1], "tp=1,2").out
    assert "megatron-core" in one
    assert not [line for line in one.splitlines() if "tokens/s" in line and "stack" in line]
