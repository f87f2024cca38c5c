"""The line on how well predictions order the plans of published runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simgpt import tables

if TYPE_CHECKING:
    from validation.published.plan_ranking import Rankings


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
