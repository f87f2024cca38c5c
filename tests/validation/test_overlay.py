"""Published steps beside predictions of the same question."""

from __future__ import annotations

import pytest

from validation.overlay import published_point, published_step
from workload.gpt import find_model


def test_a_published_step_follows_from_the_published_share_of_the_peak() -> None:
    """Of gpt-5b on 512 GCDs 41.1 % of 191.5 TFLOP/s was published, all layers recomputed: a
    sequence's FLOPs times 8,192 over 512 devices' rate."""
    found = published_step("gpt-5b", "frontier", 512, 8192)
    assert found is not None
    assert found.hfu == pytest.approx(0.411)
    step_s = 8192 * find_model("gpt-5b").hardware_flops(1) / (512 * 0.411 * 191.5e12)
    assert found.step_s == pytest.approx(step_s, rel=1e-3)
    assert found.beside(2 * found.step_s)["error"] == found.error_of(2 * found.step_s) == 1


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
