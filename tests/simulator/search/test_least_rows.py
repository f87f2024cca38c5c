"""Matmuls of experts with few rows, which may take longer than those with more."""

from __future__ import annotations

import pytest

from simulator.costs.analytic import AnalyticCosts
from simulator.predict import predict
from simulator.search import search
from simulator.search.asked.least_rows import least_seconds
from simulator.search.baselines import every_plan
from simulator.search.problem import SearchProblem
from simulator.search.space import spaces_of
from tests.simulator.search.test_branch_and_bound import last
from topologies.machine_files import load_machine
from workload.expert_loads.histogram import Histogram, routed
from workload.gpt import GPT
from workload.op import Op
from workload.op_attributes import Attributes

MANY = GPT(
    name="many",
    layers=2,
    hidden=1024,
    heads=8,
    ffn=2048,
    sequence=64,
    vocab=1000,
    biases=False,
    activation="swiglu",
    experts=128,
    topk=1,
    expert_ffn=1024,
)


def grouped(form: str, rows: int, dtype: str) -> Op:
    """The matmuls of four experts that get so many rows together."""
    own = -(-rows // 4)
    m, k = (512, own) if form == "TN" else (own, 512)
    how: Attributes = {"form": form, "m": m, "n": 1024, "k": k, "count": 4, "even": False}
    flops, nbytes = 2 * rows * 512 * 1024, 2 * rows * 1536 + 4 * 512 * 1024
    return Op(
        "g", "grouped_matmul", (), (), flops=flops, nbytes=nbytes, dtype=dtype, attributes=how
    )


@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(name, form, marks=() if at == number else pytest.mark.slow)
        for at, name in enumerate(["dgx-b200", "alps", "perlmutter"])
        for number, form in enumerate(["TN", "NN", "NT"])
    ],
)
def test_no_matmul_of_more_rows_takes_less_than_the_least_time(name: str, form: str) -> None:
    machine = load_machine(name)
    costs, device = AnalyticCosts(machine), machine.device
    for dtype in ("bf16", "fp8") if "fp8" in device.peak_flops_per_s else ("bf16",):
        times = [costs.seconds(grouped(form, rows, dtype)) for rows in range(1, 2001)]
        least = [
            least_seconds(costs.seconds, device, grouped(form, rows, dtype))
            for rows in range(1, 2001, 37)
        ]
        assert all(
            each <= min(times[start:]) * (1 + 1e-12)
            for start, each in zip(range(0, 2000, 37), least, strict=True)
        )
        assert least[-1] == pytest.approx(times[1998], rel=0.01)  # no less than it must be


@pytest.mark.slow
def test_layers_with_few_rows_for_each_expert_are_searched_right() -> None:
    """On a GB200 a gradient of weights of a few rows in 8 bits takes longer than one of more."""
    machine = load_machine("gb200-nvl72")
    few, more = (1,) * 128, (60,) * 32 + (1,) * 96
    fixed = {
        "tp": 2, "y": 1, "mbs": 4, "overlap": ("dp",), "order": "tp-dp-pp",
        "recompute": "none", "zero": 1, "dispatcher": "usual", "recipe": "mxfp8",
    }  # fmt: skip
    problem = SearchProblem(routed(MANY, Histogram((few, more))), 8, 16, fixed)
    plans = [plan for space in spaces_of(problem) for plan in every_plan(space)]
    steps = sorted(predict(problem.gpt, plan, machine).step_s for plan in plans)
    found = last(search(problem, machine, top=1))
    assert [each.step_s for each in found.found] == steps[:1]
