"""The section of a report that says how far steps vary with noise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from simulator.noise.played import cause_of
from validation.report.figures.noise_figures import drawn_parts, noise_figure, signed_seconds
from validation.report.figures.scaling_figures import seconds
from validation.report.page import Drawing, PageTable, Section
from validation.report.read_prediction import Answer
from validation.report.words import percent, several

WORDS = (
    "Each sample is a step with drawn noise on every rank. On the right is by what the mean step "
    "is longer, as the mean of all ranks: waiting for late ones at collectives by axes, and the "
    "rest."
)


def variability(answers: Iterable[Answer | None]) -> Section | None:
    """Steps with noise, of the first answer that has them."""
    answer = next((each for each in answers if each is not None and each.variability), None)
    if answer is None:
        return None
    found = answer.variability
    low, high = found["interval_step_s"]
    slow = found["one_slow_device"]
    rows = [
        ("step without noise", seconds(found["noise_free_step_s"])),
        ("median step", seconds(found["median_step_s"])),
        ("90 % of the samples", f"{seconds(low)} to {seconds(high)}"),
        ("mean cost of the noise", percent(found["mean_cost"], sign=True)),
        (f"one device {100 * slow['slower_by']:g} % slower", percent(slow["cost"], sign=True)),
    ]
    excess = [
        (cause_of(part), signed_seconds(each))
        for part, each in drawn_parts(found["excess_s"]).items()
    ]
    samples = several(len(found["steps_s"]), "sample")
    text = f"{answer.model} under {answer.plan}: {samples} with {noise_of(found['noise'])}."
    tables = [PageTable(("step", ""), rows, caption=f"seed {found['seed']}")]
    if excess:
        tables.append(PageTable(("what the noise adds, mean rank", "time"), excess))
    drawing = Drawing("variability", noise_figure(found), WORDS)
    return Section("variability", "Steps with noise", [text], [drawing], tables)


def noise_of(noise: Mapping[str, Any]) -> str:
    """The noise of an answer in words."""
    names = {
        "jitter": "jitter",
        "slow_share": "share of slow devices",
        "slow_by": "slower by",
        "spread": "spread of devices",
    }
    parts = [f"{names.get(key, key)} {100 * each:g} %" for key, each in noise.items() if each]
    return ", ".join(parts) or "no noise"
