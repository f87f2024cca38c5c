"""What an answer says of how far it can be relied on, and of what it takes for granted."""

from __future__ import annotations

import json
import re

import pytest

from tests.messages import assert_names
from tests.simgpt.face import simgpt


def test_a_plan_that_fits_by_less_than_peaks_are_off_is_said_to_be_tight() -> None:
    """An H100 has as much as half of such runs need, or a hundredth more than nine of ten."""
    asked = ("tiny-2m", "-m", "1x8xH100", "-n", "8", "--plan", "dp=8", "--batch", "8")
    told = json.loads(simgpt("predict", *asked, "--json").out)["memory"]
    half = (told["sure_bytes"] + told["most_bytes"]) / 2

    def fits(peak_bytes: float) -> str:
        """The row of the text where so large a peak would lie where the plan's now does."""
        capacity = told["capacity_bytes"] * told["peak_bytes"] / peak_bytes
        memory = f"device.memory={capacity + told['reserve_bytes']:.0f} B"
        said = simgpt("predict", *asked, "--set", memory).out
        return said.partition("\nfits ")[2].partition("\n")[0].strip()

    assert re.search(r"^tight\b.*\b[2-8]0 % likely", fits(half))
    assert re.search(r"^yes\b.*\b9[0-2] % likely", fits(told["sure_bytes"] / 1.01))


@pytest.mark.parametrize(
    ("model", "recipe", "is_said"),
    [
        ("tiny-mixtral-2m", "mxfp8", True),
        ("tiny-mixtral-2m", "nvfp4", False),
        ("tiny-2m", "mxfp8", True),
        ("tiny-2m", "nvfp4", False),
        ("tiny-2m", "none", False),
    ],
)
def test_a_range_says_that_no_published_run_has_a_recipe(
    model: str, recipe: str, is_said: bool
) -> None:
    """Of models of either kind runs in nvfp4 are published."""
    asked = ("-m", "1x8xB200", "-n", "8", "--batch", "8", "--json", "--plan")
    found = json.loads(simgpt("predict", model, *asked, f"dp=8,recipe={recipe}").out)
    assert (f"recipe={recipe}" in found["range"]["basis"]) == is_said


def test_trays_of_racks_are_said_to_be_without_their_nvlink() -> None:
    asked = ("tiny-2m", "-m", "2xGB200,4xNDR", "-n", "8", "--batch", "8")
    words = ("4", "NVLink", "72", "1x64xGB200")
    assert_names(simgpt("predict", *asked, "--plan", "dp=8").out, *words)
    fixed = "tp=1,y=1,z=1,pp=1,zero=0,mbs=1,recompute=none"
    assert_names(simgpt("search", *asked, "--plan", fixed).out, *words)
