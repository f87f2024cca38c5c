"""Published dense steps on Blackwell beside their predictions, of those that the fit left out."""

from __future__ import annotations

import pytest

from tools.fit_blackwell_steps import SHIPPED, Step, factor_of, step_of
from topologies.files.reading import shipped_text
from topologies.session import Session
from validation.moe.rows import moe_runs_of

LEFT_OUT = {"dense-004": 0.15, "dense-014": 0.1, "dense-031": 0.05}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_dense_step_on_gb300_that_the_fit_left_out_is_near_its_prediction(name: str) -> None:
    """Llama 3.1 405B and Llama 3 70B in 8 bits, and 70B in 4, whose matmuls and whose others both
    have a part."""
    lines = shipped_text("validation", f"data/{SHIPPED}").splitlines()
    (run,) = [each for each in moe_runs_of(lines, SHIPPED) if each.id == name]
    with Session():
        assert abs(step_of(run).error(1.0)) < LEFT_OUT[name]


def test_the_factor_is_the_median_of_the_models_means() -> None:
    """Of 3 s that stay and 6 s that a factor divides, 6 s measured: 2; of 5 s: 3; of 9 s: 1."""
    steps = [
        Step("g", "k", model, s, 3.0, 6.0) for model, s in (("a", 6.0), ("a", 5.0), ("b", 9.0))
    ]
    assert [step.factor for step in steps] == [2.0, 3.0, 1.0]
    assert factor_of(steps) == (2.5 + 1.0) / 2
    assert steps[0].error(2.0) == 0.0
