"""The machine file of the machine at hand, from what calibration measured on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from executor.launching.task_specs import Calibrated, Tables


def machine_document(
    one_rank: Calibrated | None, all_ranks: Calibrated, ranks: int, measured: str
) -> dict[str, Any]:
    """A machine of one node with `ranks` devices, as `topologies` reads it from JSON.

    `all_ranks` was measured with all ranks busy at once, `one_rank` with one. Peaks are the best
    rates that were measured, so that FLOP utilisation relates to them. `measured` says when and
    with what.
    """
    kernels = _merged([run.kernels for run in (one_rank, all_ranks) if run is not None])
    source = f"simgpt calibrate: {measured}"
    copy_rate = f"{max(_rates(kernels, 'add'), default=1e9):.4g} B/s"

    def fact(value: Any) -> dict[str, Any]:
        return {"value": value, "source": source, "confidence": "high"}

    return {
        "name": "host",
        "description": f"{all_ranks.device}, {ranks} ranks, calibrated",
        "nodes": fact(1),
        "device": {
            "name": all_ranks.device,
            "memory": fact(f"{all_ranks.memory_bytes} B"),
            "reserve": fact(f"{all_ranks.reserve_bytes} B"),
            "memory_bandwidth": fact(copy_rate),
            "memory_efficiency": fact(1.0),
            "launch": fact("0 s"),
            **_matmul_facts(kernels, fact),
            "attention": {"forward": fact(1.0), "backward": fact(1.0)},
        },
        "node": {
            "devices": fact(ranks),
            "links": {"bandwidth": fact(copy_rate), "all_pairs": fact(1)},
            "host": {"bandwidth": fact(copy_rate)},
        },
        "interconnect": {"kind": "none"},
        "software": {"name": f"torch {all_ranks.torch}", "compute_share": fact(all_ranks.overlap)},
        "profile": _profile(kernels, all_ranks, measured),
    }


def _matmul_facts(kernels: Tables, fact: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """The best rates as peaks, and an efficiency of one: the profile's tables say the rest."""
    best = {p: _best_flops_per_s(rows) for p, rows in _matmuls(kernels)}
    shape = {"e_max": 1.0, "m0": 0, "n0": 0, "k0": 0, "launch": "0 s", "memory_fraction": 1.0}
    return {
        "peak_flops": {p: fact(f"{rate:.4g} FLOP/s") for p, rate in best.items()},
        "matmul": {
            **{key: fact(value) for key, value in shape.items()},
            "best": fact(f"{max(best.values()):.4g} FLOP/s"),
        },
    }


def _profile(kernels: Tables, all_ranks: Calibrated, measured: str) -> dict[str, Any]:
    return {
        "kernels": {key: _table(rows) for key, rows in kernels.items()},
        "collectives": {key: _table(rows) for key, rows in all_ranks.collectives.items()},
        "host": all_ranks.host,
        "provenance": {"measured": measured, "device": all_ranks.device},
    }


def _merged(runs: Iterable[Tables]) -> Tables:
    merged: Tables = {}
    for run in runs:
        for key, rows in run.items():
            merged.setdefault(key, []).extend(rows)
    return merged


def _table(rows: list[dict[str, float]]) -> dict[str, Any]:
    columns = list(rows[0])
    return {"columns": columns, "rows": [[row[column] for column in columns] for row in rows]}


def _matmuls(kernels: Tables) -> Iterable[tuple[str, list[dict[str, float]]]]:
    for key, rows in kernels.items():
        kind, _, precision = key.partition("@")
        if kind == "matmul":
            yield precision, rows


def _best_flops_per_s(rows: list[dict[str, float]]) -> float:
    return max(2 * row["m"] * row["n"] * row["k"] / row["seconds"] for row in rows)


def _rates(kernels: Tables, kind: str) -> Iterable[float]:
    for key, rows in kernels.items():
        if key.partition("@")[0] == kind:
            yield from (row["nbytes"] / row["seconds"] for row in rows)
