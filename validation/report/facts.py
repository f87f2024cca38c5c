"""Figures of predictions: those that stand under an answer, and the table of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from simulator.economics import NO_POWER
from simulator.predict import is_much_masked
from simulator.uncertainty.fitting import DOES_NOT_FIT, FITS, TIGHT
from topologies.files.units import J_PER_MWH, format_energy, format_quantity
from validation.report.figures.scaling_figures import seconds
from validation.report.page import PageTable
from validation.report.read_prediction import Answer
from validation.report.words import gib, hours, percent

MOST_ROWS = 1000
RANGE = "80 % range"
DAY_S = 86_400
SHORT = {FITS: "yes", TIGHT: "tight", DOES_NOT_FIT: "no"}  # verdicts in a column
Column = tuple[str, Callable[[Answer], str]]


def facts_of(answer: Answer, *, step: bool) -> list[tuple[str, str]]:
    """What stands under the answer; with `step`, the step's time too."""
    own = [("one step", seconds(answer.step_s))] if step else []
    own += [(RANGE, range_words(answer))] if answer.range_s else []
    rate = format_quantity(answer.flops_per_s / answer.devices, "FLOP/s")
    return [
        *own,
        ("tokens per second", f"{answer.tokens_per_s:,.0f}"),
        ("model FLOP/s per device", rate),
        (mfu_label([answer]), percent(answer.mfu)),
        *_causal(answer),
        ("HFU, recomputation counted", percent(answer.hfu)),
        ("peak memory per device", gib(answer.peak_bytes)),
        ("memory for tensors", f"{gib(answer.capacity_bytes)}: {answer.verdict}"),
        ("tokens a step", _tokens(answer.tokens_per_s * answer.step_s)),
        *_costs(answer),
        *_training(answer),
    ]


def range_words(answer: Answer) -> str:
    """Within which a step is expected: `3.86 s to 5.33 s`."""
    return " to ".join(seconds(value) for value in answer.range_s or ())


def mfu_label(answers: Sequence[Answer]) -> str:
    """What the MFU of some answers is called: with its peak, where linears of one have another."""
    peaks = dict.fromkeys(answer.mfu_peak for answer in answers if answer.mfu_peak)
    return f"MFU, of the peak of {' or '.join(peaks)}" if peaks else "MFU"


def _causal(answer: Answer) -> list[tuple[str, str]]:
    """The MFU without what a causal mask leaves out, where that is much less."""
    own = answer.mfu_causal
    much = own is not None and is_much_masked(answer.mfu, own)
    return [("MFU, causal attention", percent(own))] if own is not None and much else []


def _costs(answer: Answer) -> list[tuple[str, str]]:
    found = []
    if (node_s := answer.cost.get("node_s_per_step")) is not None:
        found.append(("node-hours a step", hours(node_s)))
    if "energy_j_per_step" in answer.cost:
        found.append(_energy("energy a step", answer.cost, "energy_j_per_step", format_energy))
    return found


def _energy(
    what: str, held: Mapping[str, float | None], key: str, words: Callable[[float], str]
) -> tuple[str, str]:
    """An energy; that of the devices where the nodes' part is not known."""
    whole, own = held.get(key), held.get(f"devices_{key}")
    if whole is None and own is not None:
        return f"{what} (devices only)", words(own)
    return what, NO_POWER if whole is None else words(whole)


def _training(answer: Answer) -> list[tuple[str, str]]:
    """What training on as many tokens takes as were asked for."""
    if not answer.training:
        return []
    what = f"training on {_tokens(answer.training['tokens'] or 0.0)} tokens"
    return [
        (f"{what}, without a break", f"{_days(answer)} days"),
        (f"{what}: steps", f"{answer.training['steps']:,.0f}"),
        (f"{what}: node-hours", _node_hours(answer)),
        _energy(f"{what}: energy", answer.training, "energy_j", _megawatt_hours),
    ]


def _tokens(number: float) -> str:
    """Tokens, as batches and corpora are spoken of."""
    for letter, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.0f}"


def _days(answer: Answer) -> str:
    time_s = answer.training.get("time_s")
    return "-" if time_s is None else f"{time_s / DAY_S:,.1f}"


def _node_hours(answer: Answer) -> str:
    node_s = answer.training.get("node_s")
    return "-" if node_s is None else f"{node_s / 3600:,.0f}"


def _mwh(answer: Answer) -> str:
    joules = answer.training.get("energy_j")
    return "-" if joules is None else f"{joules / J_PER_MWH:,.1f}"


def _megawatt_hours(joules: float) -> str:
    return f"{joules / J_PER_MWH:,.1f} MWh"


def table_of(found: Sequence[Answer]) -> PageTable:
    """All predictions, with the columns that any of them has something for; a model or a machine
    that all share stands above instead, and a batch that all share is left out."""
    shared = len({a.model for a in found}) == 1, len({a.machine for a in found}) == 1
    named: list[Column] = [("", lambda a: a.label)] if any(a.label for a in found) else []
    model: list[Column] = [] if shared[0] else [("model", lambda a: a.model)]
    machine: list[Column] = [] if shared[1] else [("machine", lambda a: a.machine)]
    devices: Column = ("devices", lambda a: f"{a.devices:,}")
    words = [*named, *model, devices, *machine, ("plan", lambda a: a.plan)]
    columns = [*words, *_numbers(found)]
    rows = [[show(answer) for _, show in columns] for answer in found[:MOST_ROWS]]
    above = [found[0].model] if shared[0] else []
    above += [f"on {found[0].machine}"] if shared[1] else []
    names = [name for name, _ in columns]
    shown = found[:MOST_ROWS]
    values = {name: [value(answer) for answer in shown] for name, value in VALUES.items()}
    values = {name: values[name] for name in names if name in values}
    return PageTable(names, rows, len(words), " ".join(above), values, list(map(point_of, shown)))


# What rows are sorted by, where their words do not tell it; unknown values come last.
VALUES: dict[str, Callable[[Answer], float]] = {
    "devices": lambda a: a.devices,
    "batch": lambda a: a.batch,
    "step": lambda a: a.step_s,
    "tokens/s": lambda a: a.tokens_per_s,
    "days": lambda a: a.training.get("time_s") or math.inf,
    "node-hours": lambda a: a.training.get("node_s") or math.inf,
    "MWh": lambda a: a.training.get("energy_j") or math.inf,
    "HFU": lambda a: a.hfu,
    "efficiency": lambda a: math.inf if a.efficiency is None else a.efficiency,
    "peak memory": lambda a: a.peak_bytes,
}


def point_of(answer: Answer) -> dict[str, str]:
    """What a page's scatter draws of an answer: seconds, bytes, and whether it fits."""
    low, high = answer.range_s or (answer.step_s, answer.step_s)
    return {
        "x": f"{answer.step_s:.6g}",
        "y": f"{answer.peak_bytes}",
        "room": f"{answer.capacity_bytes}",
        "low": f"{low:.6g}",
        "high": f"{high:.6g}",
    }


def _numbers(found: Sequence[Answer]) -> list[Column]:
    """The columns of numbers; what training takes stands in place of tokens per second."""
    training: list[Column] = [("days", _days), ("node-hours", _node_hours), ("MWh", _mwh)]
    rate: list[Column] = [("tokens/s", lambda a: f"{a.tokens_per_s:,.0f}")]
    efficiency: list[Column] = [("efficiency", _efficiency)]
    batch: list[Column] = [("batch", lambda a: f"{a.batch:,}")]
    return [
        *(batch if len({a.batch for a in found}) > 1 else []),
        ("step", lambda a: seconds(a.step_s)),
        *(training if any(a.training for a in found) else rate),
        ("HFU", lambda a: percent(a.hfu)),
        *(efficiency if any(a.efficiency is not None for a in found) else []),
        ("peak memory", lambda a: gib(a.peak_bytes)),
        ("fits", lambda a: SHORT[a.verdict]),
    ]


def _efficiency(answer: Answer) -> str:
    return "-" if answer.efficiency is None else percent(answer.efficiency)
