"""The documentation's rooflines of ORNL's models are those of the plans that are validated."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from simgpt import tables
from simulator.explain.roofline import Roofline, roofline
from topologies.machine_files import load_machine
from topologies.placement import scheduler
from validation.seeds.candidates import SeedRuns, published_hfus
from workload.kinds import ATTENTIONS

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "why-and-reports.md"
TABLE = re.compile(r"(<!-- rooflines of ORNL's models -->\n\n.*\n.*\n)((?:\|.*\n)*)")
LINEARS = ("qkv", "out", "up", "down")
PRODUCTS = {f"{name}.{product}" for name in LINEARS
            for product in ("matmul", "grad.input", "grad.weight")}  # fmt: skip


def row(name: str) -> str:
    """A row of the table for one of the models."""
    best = SeedRuns()[name].best
    machine = load_machine(best.machine)
    found = roofline(best, machine, scheduler(machine, best.devices))
    attention = {kind.replace("_", ".") for kind in ATTENTIONS}
    step, hfu = found.step, published_hfus()[name]
    cells = [
        name.removeprefix("ornl-").upper(),
        spread(found, PRODUCTS),
        spread(found, attention),
        f"{step.intensity:,.0f}",
        f"{step.flops_per_s / 1e12:.1f}",
        tables.percent(step.share_of_roof(found.roofs)),
        tables.percent(best.hfu),
        tables.percent(hfu),
    ]
    return f"| {' | '.join(cells)} |\n"


def spread(found: Roofline, kinds: set[str]) -> str:
    """The least and the most intensity of some kinds, all of which are there."""
    chosen = {kind.name: kind.intensity for kind in found.kinds if kind.name in kinds}
    assert set(chosen) == kinds
    values = [value for value in chosen.values() if value is not None]
    return f"{min(values):,.0f} to {max(values):,.0f}"


@pytest.mark.slow
def test_the_table_of_the_three_models_is_what_is_predicted() -> None:
    rows = "".join(row(name) for name in ("ornl-22b", "ornl-175b", "ornl-1t"))
    text = PAGE.read_text(encoding="utf-8")
    if os.environ.get("SIMGPT_REWRITE"):
        text = TABLE.sub(lambda match: match[1] + rows, text)
        PAGE.write_text(text, encoding="utf-8")
    shown = TABLE.search(text)
    assert shown is not None
    assert shown[2] == rows


@pytest.mark.parametrize("name", ["ornl-175b"])
def test_the_documented_command_asks_the_plan_that_is_validated(name: str) -> None:
    best = SeedRuns()[name].best
    plan, text = best.plan, PAGE.read_text(encoding="utf-8")
    asked = f"tp={plan.grid.tp},pp={plan.pp},dp=rest,mbs={plan.mbs},"
    asked += f"zero={plan.zero},recompute={plan.training.recompute} --batch {plan.batch}"
    assert f"simgpt why {name} -m frontier -n {best.devices} " in text
    assert asked in text
