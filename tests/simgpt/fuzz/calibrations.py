"""Command lines about machines with measured tables, some cells of which are no measurements."""

from __future__ import annotations

import copy
from typing import Any

from tests.profiles import measured_by_bytes
from tests.simgpt.fuzz.damage import as_bytes, chewed, mutated
from tests.simgpt.fuzz.pieces import Pieces
from tests.simgpt.fuzz.values import WEIRD
from topologies.machine import machine_to_dict
from topologies.machine_files import load_machine

DEVICES = 4
OF_BYTES = ("ranks", "nbytes", "seconds")
SHAPE = ("ranks", "rows", "heads", "width", "sequence", "seconds")
CELLS: list[Any] = [
    *(*WEIRD, 5e-324, 0.001, 7.5, 3600.5, 2**50, 2**50 + 1, 2.0**53, 86_399.0, 86_400, 1e-30),
    *(1e-31, 1e-12, 1e12, 1, 2, 3, 4, 5, 64),
]


def _table(columns: tuple[str, ...], *rows: tuple[float, ...]) -> dict[str, Any]:
    return {"columns": list(columns), "rows": [list(row) for row in rows]}


def calibration() -> dict[str, Any]:
    """A machine of four devices with the tables that a step in fp32 needs."""
    matmuls = [
        (ranks, form, m, n, 8, 1e-5)
        for ranks in (1, 4)
        for form in range(3)
        for m in (8, 64)
        for n in (8, 64)
    ]
    batched = [(1, form, flops, 1e-5) for form in range(3) for flops in (10**4, 10**6)]
    kernels = {
        "matmul@fp32": _table(("ranks", "form", "m", "n", "k", "seconds"), *matmuls),
        "batched_matmul@fp32": _table(("ranks", "form", "flops", "seconds"), *batched),
    }
    for kind in measured_by_bytes():
        kernels[f"{kind}@fp32"] = _table(OF_BYTES, (1, 100, 1e-6), (1, 10**6, 1e-5))
    for kind in ("attention", "attention_grad"):
        kernels[f"{kind}@fp32"] = _table(SHAPE, (1, 128, 8, 8, 128, 1e-4), (1, 16, 8, 4, 16, 1e-5))
    sent = _table(("ranks", "bytes", "seconds"), (2, 1024, 1e-5), (4, 1024, 1e-5), (4, 2**20, 1e-3))
    kinds = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv", "broadcast")
    profile = {
        "kernels": kernels,
        "collectives": {kind: copy.deepcopy(sent) for kind in kinds},
        "host": {"matmul@fp32": 1e-6},
        "provenance": {"measured": "today", "at": "2026-01-01T00:00:00+00:00"},
    }
    machine = machine_to_dict(load_machine("perlmutter"))
    return machine | {"nodes": {"value": 1, "source": "here"}, "profile": profile}


CALIBRATION = calibration()


class Calibrations(Pieces):
    """Draws machines as `simgpt calibrate` writes them."""

    def _calibration(self) -> list[str]:
        rng, document = self.rng, copy.deepcopy(CALIBRATION)
        for _ in range(rng.choice([0, 1, 1, 1, 2, 4])):
            tables = document["profile"][rng.choice(["kernels", "collectives"])]
            table = tables[rng.choice(list(tables))]
            rows = table["rows"] or [[]]
            if not isinstance(rows, list) or not all(
                isinstance(each, list) and each for each in rows
            ):
                continue  # damaged by a draw before
            row, value = rng.choice(rows), rng.choice(CELLS)
            if self.odds(0.8):
                row[rng.randrange(len(row))] = value
            elif self.odds(0.5):  # a whole column, so that nothing sound is left of it
                at = rng.randrange(len(row))
                for each in rows:
                    each[at % len(each)] = value
            else:
                table[rng.choice(["columns", "rows"])] = rng.choice([*WEIRD, [row], row])
        if self.odds(0.2):
            document["profile"] = mutated(rng, document["profile"], rng.randint(1, 3), CELLS)
        if self.odds(0.03):
            document["profile"] = rng.choice(WEIRD)
        content = as_bytes(document)
        self.files["host.json"] = chewed(rng, content) if self.odds(0.1) else content
        asked = ["tiny-30k", "-m", "host.json", "-n", rng.choice(["1", "2", "4", "4"])]
        batch = ["--batch", rng.choice(["4", "8", "64", "100000"])]
        plan = ["--plan", rng.choice(["dp=rest", "tp=2,dp=rest", "z=2,dp=rest,zero=1"])]
        plan[1] += ",precision=fp32"
        return rng.choice(
            [
                ["predict", *asked, *plan, *batch, "--json"],
                ["predict", *asked, *plan, *batch, "--json"],
                ["why", *asked, *plan, *batch],
                ["search", *asked, *batch, "--workers", "1", "--plan", "precision=fp32,pp=1"],
                ["bench-network", "-m", "host.json", "--json"],
                ["machines", "host.json", "--json"],
            ]
        )
