"""The measured step of a row, and whether its error counts."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from simulator.costs.analytic import peak_flops_per_s
from topologies.files.reading import shipped_toml
from topologies.machine import Machine
from validation.published.runs import PublishedRun
from workload.gpt import GPT

MEASURED = re.compile(r"network [^:;]*before [^:;]*: all-reduce [\d.]+, all-gather ([\d.]+)")
SEEDS = "plan not published; predicted by simgpt validate seeds"


def measured_s(run: PublishedRun, gpt: GPT, machine: Machine) -> float | None:
    """The step as published, or worked out from the published FLOP/s or MFU by the formula that
    the row's `[flops:…]` tag names; None where there is neither.

    Causal counts half of attention's square, hardware counts recomputing every layer.
    """
    if (step_s := run.real("measured_step_s")) is not None:
        return step_s
    gpus, batch = run.whole("gpus_total"), run.whole("global_batch_seqs")
    rate = (run.real("measured_tflops_per_gpu") or 0.0) * 1e12
    rate = rate or (run.real("measured_mfu") or 0.0) * peak_flops_per_s(machine, "bf16")
    if not (gpus and batch and rate):
        return None
    return published_flops(run.text("notes"), gpt, batch) / (rate * gpus)


def published_flops(notes: str, gpt: GPT, batch: int) -> float:
    """A step's FLOPs as the source of a row with these notes counts them."""
    if "[flops:hardware" in notes:
        return gpt.hardware_flops(batch)
    if "[flops:model-causal" in notes:
        square = 12 * gpt.layers * gpt.sequence * gpt.attention.heads * gpt.width
        return gpt.model_flops(batch) - batch * gpt.sequence * square / 2
    return gpt.model_flops(batch)


def unscored(run: PublishedRun) -> str:
    """Why a row's error counts nowhere, or nothing."""
    table = _unscored()
    if run.id in table["rows"]:
        return str(table["rows"][run.id])
    tags = (str(why) for tag, why in table["notes"].items() if tag in run.text("notes"))
    return next(tags, "") or _with_another_network(run)


def _with_another_network(run: PublishedRun) -> str:
    """Why the network that a row's job measured before it began was not well, if so."""
    network = _unscored()["network"]
    nodes = (run.whole("gpus_total") or 0) // (run.whole("gpus_per_node") or 1)
    known = run.text("fabric") in network["fabrics"]
    usual = network["all_gather"].get(str(nodes)) if known else None
    found = MEASURED.search(run.text("notes"))
    if usual is None or found is None or float(found[1]) >= network["least"] * usual:
        return ""
    return f"the job measured {found[1]} GB/s before it began, of {usual:g} that its fabric reaches"


def settled_elsewhere(run: PublishedRun) -> str:
    """Where a row's published figures are predicted, if not among the published runs."""
    return SEEDS if run.id in _unscored()["elsewhere"]["rows"] else ""


@cache
def _unscored() -> dict[str, dict[str, Any]]:
    return shipped_toml("validation", "data/unscored.toml")
