"""Published steps that one pass of a stack decides: the host's pace, and who sends parameters."""

from __future__ import annotations

from validation.published.predicting import predict_runs
from validation.published.runs import RUNS, SWEEPS, read_runs


def error_of(name: str, table: str) -> float:
    """Predicted over measured, less one, of a row."""
    (run,) = [each for each in read_runs(None, table) if each.id == name]
    (outcome,) = predict_runs([run], lambda _: None)
    assert outcome.error is not None
    return outcome.error


def test_a_layer_of_nanotron_takes_as_long_as_its_host_issues_it() -> None:
    """31.6 s for 256 micro-batches of one sequence on 8 ranks of x; half without the host."""
    assert abs(error_of("nanotron-sweep-0668", SWEEPS)) < 0.1


def test_parameters_of_internevo_are_sent_by_their_owners() -> None:
    """7.21 s on 1,024 GPUs, 4.26 s on 16; 4.36 s if all ranks gathered them at once."""
    assert abs(error_of("internevo-008", RUNS)) < 0.2
    assert abs(error_of("internevo-002", RUNS)) < 0.1
