"""What a simulator has to beat: the formula, by hand, and factors that never saw their own row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.validation.test_published import case, run
from validation.published.baselines import (
    Reached,
    calibrated,
    ideal_of,
    mean_error,
    with_formula,
)
from validation.published.outcome import PREDICTED, Ideal, Outcome
from validation.published.run_machine import machine_of
from validation.published.runs import PublishedRun

BATCH, GPUS, A100 = 16, 8, 312e12


def ideal(**cells: str) -> Ideal:
    """That of a row of 16 sequences on 8 GPUs: 4 micro-batches in 2 stages, unless it says more."""
    row = run(**cells)
    found = ideal_of(row, case(**cells), machine_of(row))
    assert found is not None
    return found


def test_the_ideal_step_is_the_models_flops_at_the_peak_and_the_pipelines_bubble() -> None:
    """One slot of four is added by two stages, half of one if each has two chunks."""
    flops = case().asked.model_flops(BATCH)
    assert ideal().step_s == pytest.approx(flops / (GPUS * A100) * (1 + 1 / 4))
    assert ideal(vpp="2").step_s == pytest.approx(flops / (GPUS * A100) * (1 + 1 / 8))
    assert ideal(pp="1", dp="4").step_s == pytest.approx(flops / (GPUS * A100))


def test_full_recomputation_counts_in_the_ideal_step() -> None:
    gpt = case().asked
    found = ideal(recompute="full").step_s / ideal(recompute="none").step_s
    assert found == pytest.approx(gpt.hardware_flops(BATCH) / gpt.model_flops(BATCH))


def test_a_row_in_fp8_is_of_its_own_family_and_has_twice_the_peak() -> None:
    half, eighth = (ideal(gpu="H100-SXM5-80GB", precision=name) for name in ("bf16", "fp8"))
    assert (half.family, eighth.family) == ("h100 bf16", "h100 fp8")
    assert half.step_s == pytest.approx(2 * eighth.step_s)


def outcome(name: str, source: str = "A", **how: float | None) -> Outcome:
    columns = {"id": name, "source": source, "machine": "M", "gpu": "G", "framework": "F"}
    steps = {"measured_s": 1.0, "predicted_s": 1.0, **how}
    return Outcome(PublishedRun(columns), PREDICTED, **steps)  # type: ignore[arg-type]


def formula_s(family: str, *reached: Reached) -> float | None:
    every = {f"{number}": each for number, each in enumerate(reached)}
    row = replace(outcome("a"), ideal=Ideal(family, 3.0))
    (found,) = with_formula([row], every)
    return found.formula_s


def test_the_formula_is_the_ideal_over_what_other_sources_reached_on_that_family() -> None:
    """B reached 0.2 and C, thrice, 0.4: the median of the sources is 0.3. The row's own source, A,
    and D, on another GPU, do not count."""
    others = [Reached("B", "a100", 0.2), *[Reached("C", "a100", 0.4)] * 3]
    aside = [Reached("A", "a100", 0.9), Reached("D", "h100", 0.8)]
    assert formula_s("a100", *others, *aside) == pytest.approx(10.0)
    assert formula_s("mi250x", *others, *aside) == pytest.approx(3.0 / 0.4)  # of B, C and D
    assert formula_s("a100", aside[0]) is None


def test_the_factor_of_a_stack_is_that_of_its_other_rows() -> None:
    """Rows that take once, twice and four times what is predicted: the last gets 1.5."""
    rows = [outcome(f"{factor}", measured_s=factor, predicted_s=1.0) for factor in (1.0, 2.0, 4.0)]
    assert [each.calibrated_s for each in calibrated(rows)] == [3.0, 2.5, 1.5]
    elsewhere = replace(rows[0], run=PublishedRun({**rows[0].run.columns, "machine": "N"}))
    assert calibrated([elsewhere, *rows[1:]])[0].calibrated_s is None


def test_errors_of_both_signs_do_not_cancel_in_a_baselines_mean() -> None:
    rows = [outcome("a", formula_s=1.5), outcome("b", formula_s=0.5)]
    assert mean_error(rows, lambda each: each.formula_s) == pytest.approx(0.5)
