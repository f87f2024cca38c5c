"""The lines on how well predictions order published runs, and how well their ranges hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simgpt import tables

if TYPE_CHECKING:
    from simulator.uncertainty.ranking import Rankings
    from validation.published.coverage import Coverage


def ranking_line(found: Rankings, whose: str = "") -> str:
    """What a person reads; `whose` names the predictions where there are several."""
    line = (
        f"ranking plans of one model on one machine{whose}: Kendall tau {found.tau:.2f}, "
        f"regret of the top pick {tables.percent(found.regret)} over "
        f"{tables.several(found.groups, 'group')}"
    )
    if found.plan_tau is None:
        return line
    groups = tables.several(found.plan_groups, "group")
    return f"{line}; plans that ran several times counted once: {found.plan_tau:.2f} over {groups}"


def ranges_line(found: Coverage) -> str:
    """How many measured steps are in the ranges of their predictions."""
    return (
        f"ranges of 80 %, each source from all others: {tables.percent(found.share)} of the "
        f"measured steps within, mean of {tables.several(found.sources, 'source')}; median "
        f"half-width {tables.percent(found.half_width)}"
    )
