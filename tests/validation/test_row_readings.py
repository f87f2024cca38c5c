"""What stands for a published row: what is believed of it, and what its notes say."""

from __future__ import annotations

import pytest

from tests.validation.test_published import case
from validation.published import case as cases

COMPILED = {"activation": "swiglu", "tp": "1", "pp": "1", "dp": "8"}


@pytest.mark.parametrize(("share", "read"), [(1.1, "none"), (1.2, "full:3")])
def test_a_run_that_ran_is_doubted_only_where_it_needs_far_more_memory(
    share: float, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "share_of_memory", lambda *_: share)
    monkeypatch.setattr(cases, "fitting_change", lambda *_: {"recompute": "full:3"})
    found = case(recompute="none")
    assert found.job.plan.recompute == read
    assert not found.fits
