"""What is counted over rows of models with experts, on rows made by hand."""

from __future__ import annotations

from validation.moe.comparison import MoeComparison, Verdicts
from validation.published.comparison import Comparison
from validation.published.outcome import PREDICTED, Outcome, held_out
from validation.published.runs import PublishedRun


def test_verdicts_are_counted_apart_for_runs_that_ran_and_runs_that_ran_out_of_memory() -> None:
    """Of three that ran one is said not to fit, and it does not say what it recomputes; of two that
    ran out of memory both are. The row of a run that ran has what was said before it was known."""
    names = [name for name in map("row-{}".format, range(40)) if not held_out(name)]
    ran, oom = {"status": "ok", "recompute": "full"}, {"status": "oom"}
    cells = [(ran, True), (ran, True), ({"status": "ok"}, False), (oom, False), (oom, False)]
    rows = tuple(
        Outcome(PublishedRun({"id": name, "source": "s", **own}), PREDICTED, peak_bytes=1,
                fits=True, fits_as_read=fits)
        for name, (own, fits) in zip(names, cells, strict=False)
    )  # fmt: skip
    found = MoeComparison(Comparison(rows, None, None))
    assert found.verdicts == Verdicts(
        ran=3, ran_right=2, given=2, given_right=2, out_of_memory=2, out_of_memory_right=2
    )
    shown = [row["fits"] for row in found.as_dict()["rows"]]
    assert shown == [True, True, False, False, False]
