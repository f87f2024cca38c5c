"""How many steps ranges hold: by hand, and of the published runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from simulator.uncertainty.step_range import WIDENING, PublishedResiduals, Run, published_residuals
from tools.reliability import draw, main, reliability, source_ranges

RUN = Run("s", "s", "h100", "h100", 8, False, False)


def known(residuals: dict[str, list[float]]) -> PublishedResiduals:
    pairs = [(source, each) for source, own in residuals.items() for each in own]
    return PublishedResiduals([RUN] * len(pairs), [s for s, _ in pairs], [r for _, r in pairs])


def test_a_source_is_predicted_from_the_others_alone() -> None:
    # The others of a say -0.1 to 0.1, the others of b -0.3 to 0.3: b's runs are within, a's not.
    found = known({"a": [-0.3, 0.3], "b": [-0.1, 0.1]})
    assert reliability(found, [0.8]) == [(0.8, 0.5)]


def test_sources_count_alike_however_many_runs_they_have() -> None:
    found = known({"a": [0.3], "b": [-0.1, 0.1, 0.0, 0.05]})
    # a says 0 to 0.36, which holds three of b's four; b does not reach a's 0.3.
    assert reliability(found, [0.8]) == [(0.8, (0 + 3 / 4) / 2)]


def test_the_range_of_a_source_is_that_of_the_others_widened() -> None:
    first, last = source_ranges(known({"a": [-0.2, 0.2], "b": [-0.3]}))
    assert (first.source, last.source) == ("b", "a")
    assert first.high == pytest.approx(math.exp(0.2 * WIDENING))
    assert last.low == pytest.approx(math.exp(-0.3 * WIDENING))
    assert last.high == 1.0


def test_published_ranges_hold_eight_of_ten_steps() -> None:
    ((_, covered),) = reliability(published_residuals(), [0.8])
    assert covered == pytest.approx(0.8, abs=0.04)


@pytest.mark.slow
def test_published_ranges_hold_about_what_they_are_to_hold() -> None:
    found = reliability(published_residuals())
    assert [share for share, _ in found] == sorted(share for share, _ in found)
    assert max(abs(share - covered) for share, covered in found) < 0.08  # at 0.1; elsewhere 0.06


@pytest.mark.parametrize(
    "residuals",
    [
        lambda: known({"a": [-0.3, 0.3], "b": [-0.1, 0.1]}),
        pytest.param(published_residuals, marks=pytest.mark.slow),
    ],
    ids=["four", "published"],
)
def test_the_plot_is_drawn(residuals: Callable[[], PublishedResiduals], tmp_path: Path) -> None:
    draw(residuals(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_the_command_draws_into_the_one_file_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = known({"a": [-0.3, 0.3], "b": [-0.1, 0.1]})
    drawn: list[tuple[PublishedResiduals, Path]] = []
    monkeypatch.setattr("tools.reliability.published_residuals", lambda: found)
    monkeypatch.setattr("tools.reliability.draw", lambda *of: drawn.append(of))
    file = tmp_path / "plot.png"
    for words in ([], [str(file), "more"]):
        ended = CliRunner().invoke(main, words)
        assert ended.exit_code == 2
        assert "FILE.png" in ended.output
    assert not drawn
    assert CliRunner().invoke(main, [str(file)]).exit_code == 0
    assert drawn == [(found, file)]
