"""The critical path of drawn steps, walked as they are predicted and op by op."""

from __future__ import annotations

from itertools import islice

import pytest

from simulator.attribution.critical_path import Cause, simulated_step, ticks_by_cause
from simulator.attribution.one_stage_path import one_stage_causes
from simulator.attribution.pipeline_path import pipeline_causes
from simulator.engine.whole_step import simulate_step
from simulator.pipeline.pipeline_step import simulate_pipeline
from tests.simulator.drawn_steps import DrawnStep, drawn_steps
from workload.lowering import lower


def walked(step: DrawnStep) -> tuple[dict[Cause, int], int]:
    """Where the time of the path goes, and that of the step."""
    how = step.gpt, step.plan, step.costs, step.fabric
    if step.plan.pp > 1:
        return pipeline_causes(*how), sum(simulate_pipeline(*how).parts_ticks.values())
    return one_stage_causes(*how)[0], sum(simulate_step(*how).parts_ticks.values())


def op_by_op(step: DrawnStep) -> dict[Cause, int]:
    """Where the time of the path of all ops goes."""
    programs = [lower(step.gpt, step.plan, stage) for stage in range(step.plan.pp)]
    return ticks_by_cause(simulated_step(programs, step.costs, step.fabric).path())


@pytest.mark.parametrize(("seed", "count"), [(1, 24), pytest.param(2, 400, marks=pytest.mark.slow)])
def test_the_path_of_a_step_of_any_size_is_that_of_all_its_ops(seed: int, count: int) -> None:
    """But where a pipeline's time slot by slot is not that op by op: its path is then walked in
    that of the prediction alone. Few of them are."""
    apart = 0
    for step in islice(drawn_steps(seed), count):
        causes, ticks = walked(step)
        assert sum(causes.values()) == ticks, step
        assert min(causes.values()) > 0, step
        every = op_by_op(step)
        if sum(every.values()) == ticks:
            assert causes == every, step
        else:
            assert step.plan.pp > 1, step
            apart += 1
    assert apart <= count / 10
