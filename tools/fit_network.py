"""Fits the curves of the collective libraries to the measured tables, and prints them as TOML.

    python -m tools.fit_network              # every job of fit_jobs.json
    python -m tools.fit_network nccl mpich   # those whose name has one of these words

It sees only the rows that validation.network_validation.fit_rows allows. The search is Nelder and
Mead's simplex over the logarithms of the parameters, from several seeded starts, on the mean
absolute error of the logarithms (rounded off below 2 %).
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from topologies.collectives.collective_time import collective_seconds
from topologies.collectives.nccl_tuner import NONE
from topologies.hardware.software import Algorithms, Curve, Software, Staged, Stall
from topologies.machine import Machine
from topologies.machine_files import load_machine
from validation.network_tables import Measured, measured, read_tables
from validation.network_validation import (
    comparable,
    devices_per_node,
    fit_rows,
    is_sparse,
    ring_of,
)

Vector = NDArray[np.float64]
Slots = dict[str, dict[str, float]]
BOUNDS = {  # wide: they keep the simplex from running away where the data say nothing
    "launch": (1e-6, 2e-3),
    "hop_small": (5e-7, 2e-2),
    "hop_large": (5e-7, 5e-2),
    "step_small": (1e-7, 1e-3),
    "step_large": (1e-7, 1e-3),
    "efficiency_across": (0.01, 1.0),
    "efficiency_within": (0.01, 1.0),
    "chunk_pivot": (1024.0, 2.0**24),
    "chunk_width": (0.05, 3.0),
    "overlap": (1.0, 8.0),
    "stall.hop": (1e-6, 1e-1),
}
FIELDS = {
    "launch": "launch_s",
    "hop_small": "hop_small_s",
    "hop_large": "hop_large_s",
    "step_small": "step_small_s",
    "step_large": "step_large_s",
    "chunk_pivot": "chunk_pivot_bytes",
}


def simplex(error: Callable[[Vector], float], start: Vector, steps: int) -> tuple[float, Vector]:
    """Nelder and Mead's search (Computer Journal 1965), with its usual coefficients."""
    points = [start, *(start + 0.4 * row for row in np.eye(len(start)))]
    ranked = sorted(((error(point), tuple(point)) for point in points), key=lambda pair: pair[0])
    for _ in range(steps):
        worst, best = np.array(ranked[-1][1]), ranked[0][0]
        if ranked[-1][0] - best < 1e-7:
            break
        centre = np.mean([point for _, point in ranked[:-1]], axis=0)
        tried = _try(error, centre, worst, 1.0)
        if tried[0] < best:
            tried = min(tried, _try(error, centre, worst, 2.0), key=lambda pair: pair[0])
        elif tried[0] >= ranked[-2][0]:
            tried = min(tried, _try(error, centre, worst, -0.5), key=lambda pair: pair[0])
        if tried[0] < ranked[-1][0]:
            ranked[-1] = tried
        else:
            first = np.array(ranked[0][1])
            moved = [(first + np.array(point)) / 2 for _, point in ranked[1:]]
            ranked[1:] = [(error(point), tuple(point)) for point in moved]
        ranked.sort(key=lambda pair: pair[0])
    return ranked[0][0], np.array(ranked[0][1])


def _try(
    error: Callable[[Vector], float], centre: Vector, worst: Vector, by: float
) -> tuple[float, tuple[float, ...]]:
    point = centre + by * (centre - worst)
    return error(point), tuple(point)


def curve_of(values: dict[str, float]) -> Curve:
    """A curve from its keys; `stall.` keys make its stall."""
    own = {FIELDS.get(k, k): v for k, v in values.items() if not k.startswith("stall.")}
    stall = None
    if "stall.hop" in values:
        stall = Stall(values["stall.chunk_from"], values["stall.chunk_below"], values["stall.hop"])
    own.setdefault("efficiency_across", 1.0)
    own.setdefault("efficiency_within", 1.0)
    return Curve(**own, stall=stall)


def with_curves(machine: Machine, slots: Slots, job: dict[str, Any]) -> Machine:
    """The machine with a library of these curves alone; slots are keys: `hierarchical.all_gather`.

    A job that names a tuner has each row served by the algorithm that the tuner picks.
    """
    parts: dict[str, Any] = {"hierarchical": {}, "recursive": {}}
    for slot, values in slots.items():
        outer, dot, inner = slot.partition(".")
        if dot:
            parts[outer][inner] = curve_of(values)
        else:
            parts[slot] = curve_of(values)
    staged: dict[str, Any] = {
        name: Staged(**parts.pop(name)) for name in ("hierarchical", "recursive")
    }
    chosen, tuner = Algorithms(**job.get("algorithm", {})), job.get("tuner", NONE)
    library = Software(name="fit", **parts, **staged, algorithm=chosen, tuner=tuner)
    return dataclasses.replace(machine, software=library, profile=None)


class _Search:
    """The rows that a job's fit sees, and how far a point (logarithms) misses."""

    def __init__(self, job: dict[str, Any], tables: list[Measured]) -> None:
        self.job = job
        self.machine = load_machine(job.get("machine", tables[0].variant.partition(":")[0]))
        self.free = [(slot, key) for slot, keys in job["free"].items() for key in keys]
        self.start = np.array([math.log(job["free"][slot][key]) for slot, key in self.free])
        self.low, self.high = (
            np.array([math.log(BOUNDS[key][end]) for _, key in self.free]) for end in (0, 1)
        )
        least = job.get("from", 0)
        seen = [(t, row) for t in tables for row in fit_rows(t) if row.size_bytes >= least]
        self.seen = [(t, row, ring_of(self.machine, row, t.kind)) for t, row in seen]

    def slots(self, point: Vector) -> Slots:
        """The curves at a point, by their slot in the library."""
        result = {slot: dict(keys) for slot, keys in self.job.get("fixed", {}).items()}
        clipped = np.exp(np.clip(point, self.low, self.high))
        for (slot, key), value in zip(self.free, clipped.tolist(), strict=True):
            result.setdefault(slot, {})[key] = value
        return result

    def rounded(self, point: Vector) -> Slots:
        """As `slots`, to four digits."""
        values = np.exp(np.clip(point, self.low, self.high))
        return self.slots(np.log([float(f"{value:.4g}") for value in values]))

    def loss(self, point: Vector) -> float:
        """Mean error of the rows seen, and what bounds and falling latencies add."""
        slots = self.slots(point)
        own = with_curves(self.machine, slots, self.job)
        errors = np.array(
            [
                math.log(collective_seconds(own, t.kind, row.payload_bytes, ring) / row.seconds)
                for t, row, ring in self.seen
            ]
        )
        beyond = np.abs(point - np.clip(point, self.low, self.high)).sum()
        falling = sum(_falling(curve) for curve in slots.values())
        return float(np.sqrt(errors**2 + 0.02**2).mean() + beyond + falling)


def fit(job: dict[str, Any], tables: list[Measured]) -> tuple[Slots, str]:
    """The curves of one job, and a line on how well they fit."""
    search, random = _Search(job, tables), np.random.default_rng(7)
    start, number = search.start, len(search.start)
    starts = [start, *(start + random.normal(0, 0.6, number) for _ in range(job.get("starts", 4)))]
    found = (simplex(search.loss, s, 400 * number // 3) for s in starts)
    _, point = min(found, key=lambda pair: pair[0])
    _, point = simplex(search.loss, point, 400)
    rounded = search.rounded(point)
    return rounded, report(search.machine, rounded, job, tables)


def _falling(curve: dict[str, float]) -> float:
    """How far a latency falls with its chunk, which would let more bytes take less time."""
    pairs = [(curve.get(f"{name}_small"), curve.get(f"{name}_large")) for name in ("hop", "step")]
    return sum(max(0.0, math.log(small / large)) for small, large in pairs if small and large)


def report(
    machine: Machine,
    slots: Slots,
    job: dict[str, Any],
    tables: list[Measured],
) -> str:
    """Mean absolute error of the compared rows, seen and held out, by table."""
    own = with_curves(machine, slots, job)
    lines = []
    for table in tables:
        seen = set(fit_rows(table))
        parts: dict[bool, list[float]] = {True: [], False: []}
        for row in comparable(table):
            ring = ring_of(own, row, table.kind)
            predicted = collective_seconds(own, table.kind, row.payload_bytes, ring)
            parts[row in seen].append(abs(predicted / row.seconds - 1))
        text = " ".join(f"{np.mean(p) if p else math.nan:.3f} ({len(p)})" for p in parts.values())
        counts = sorted({row.devices for row in seen})
        lines.append(f"# {table.name}: fitted, held out {text}; fitted on {counts}")
    return "\n".join(lines)


def toml(job: dict[str, Any], slots: Slots, tables: list[Measured]) -> str:
    """The curves as tables of a machine file, of low confidence where the rows are too few."""
    sparse = is_sparse(sum(map(len, job["free"].values())), tables, job.get("from", 0))
    confidence = "low" if sparse else job.get("confidence", "high")
    text = []
    for slot, values in slots.items():
        text.append(f"[{job['into']}.{slot}]\nsource = {json.dumps(job['source'])}")
        text.append(f'confidence = "{confidence}"')
        text += [f"{key} = {_shown(key, value)}" for key, value in values.items()]
        text.append("")
    return "\n".join(text)


def _shown(key: str, value: float) -> str:
    name = key.rpartition(".")[2]
    if name == "launch" or name.startswith(("hop", "step")):
        return f'"{value * 1e6:.4g} us"'
    if name in ("chunk_pivot", "chunk_from", "chunk_below"):
        return f'"{value / 1024:.4g} KiB"'
    return f"{value:.4g}"


@click.command()
@click.argument("words", nargs=-1)
def main(words: tuple[str, ...]) -> None:
    """Fit the jobs whose names have one of WORDS, or all."""
    text = Path(__file__).with_name("fit_jobs.json").read_text(encoding="utf-8")
    jobs: dict[str, dict[str, Any]] = json.loads(text)
    every, per_node = read_tables(), devices_per_node()
    for name, job in jobs.items():
        if words and not any(word in name for word in words):
            continue
        found = [measured(table, every[table], per_node) for table in job["tables"]]
        tables = [table for table in found if isinstance(table, Measured)]
        slots, about = fit(job, tables)
        sys.stdout.write(f"# {name}\n{about}\n{toml(job, slots, tables)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
