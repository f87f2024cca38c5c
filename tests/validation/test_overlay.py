"""Published steps beside predictions of the same question."""

from __future__ import annotations

import pytest

from validation.axonn_scaling import validate_axonn
from validation.overlay import published_point, published_step


def test_a_published_step_follows_from_the_published_share_of_the_peak() -> None:
    runs = {run.id: run for run in validate_axonn()}
    run = runs["axonn-frontier-512"]
    found = published_step("gpt-5b", "frontier", 512, 8192)
    assert found is not None
    assert found.hfu == run.hfu == 0.411
    prediction = run.prediction
    assert found.step_s == pytest.approx(prediction.step_s * prediction.hfu / run.hfu, rel=1e-12)
    assert found.error_of(prediction.step_s) == pytest.approx(run.error, rel=1e-9)
    assert found.beside(prediction.step_s)["error"] == found.error_of(prediction.step_s)


def test_the_measured_step_in_json_is_that_of_the_error_beside_it() -> None:
    for run in validate_axonn():
        record = run.as_dict()
        assert record["predicted_s"] / record["measured_s"] - 1 == pytest.approx(record["error"])


def test_a_machine_may_be_named_with_its_variant_but_must_be_that_one() -> None:
    asked = published_step("gpt-5b", "frontier:rccl-rendezvous", 512, 8192)
    assert asked == published_step("gpt-5b", "frontier", 512, 8192) is not None
    assert published_step("gpt-5b", "perlmutter", 512, 8192) is None
    assert published_step("gpt-5b", "frontier", 512, 4096) is None
    assert published_step("gpt-5b", "frontier", 1024, 8192) is None


def test_a_point_that_changes_model_or_machine_was_not_published() -> None:
    point = {"model": "gpt-5b", "machine": "frontier", "devices": 512}
    assert published_point(point, 8192) is not None
    assert published_point(point | {"model.layers": 12}, 8192) is None
    assert published_point(point | {"machine.network.background": 0.1}, 8192) is None
