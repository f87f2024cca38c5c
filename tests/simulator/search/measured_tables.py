"""Machines with measured tables, made up, and a model small enough to be tried on them."""

from __future__ import annotations

from dataclasses import replace

from tests.simulator.search.drawn import MACHINES
from topologies.hardware.profile import MeasuredTable, Profile
from topologies.machine import Machine
from topologies.machine_files import load_machine
from workload.gpt import GPT
from workload.kinds import KINDS, Costs

BYTES = ("ranks", "bytes", "seconds")
PRECISIONS = ("bf16", "fp32")
TINY = GPT.of(
    name="tiny",
    layers=2,
    hidden=256,
    heads=4,
    ffn=2048,
    sequence=256,
    vocab=1000,
    positions="rope",
    biases=False,
)
ELSEWHERE = (Costs.NETWORK, Costs.PRODUCT, Costs.ATTENTION, Costs.HOST, Costs.HOST_COPY)
MEASURED_BY_BYTES = [
    name for name, row in KINDS.items() if row.costs not in ELSEWHERE and not row.measured_as
]


def measured(**sizes: tuple[int, ...]) -> Machine:
    """Perlmutter with tables of some collectives, each in groups of these sizes."""
    columns = ("ranks", "bytes", "seconds")
    tables = {
        kind: MeasuredTable(
            columns, tuple((float(n), b, b * n / 1e10) for n in own for b in (1e3, 1e8))
        )
        for kind, own in sizes.items()
    }
    return replace(MACHINES["perlmutter"], profile=Profile(collectives=tables))


def table(columns: tuple[str, ...], *rows: tuple[float, ...]) -> MeasuredTable:
    return MeasuredTable(columns, rows)


def curve(*points: tuple[float, float], ranks: tuple[int, ...] = (1,)) -> MeasuredTable:
    """Seconds by bytes, the same in groups of so many ranks."""
    return table(BYTES, *((float(n), *point) for n in ranks for point in points))


def with_kernels(
    name: str,
    slow_s: float,
    attentions: tuple[str, ...] = ("attention", "attention_grad"),
    **of_one: MeasuredTable,
) -> Machine:
    """A machine with tables of kernels, among them those of some attentions and of one op."""
    kernels: dict[str, MeasuredTable] = {}
    shape = ("ranks", "rows", "heads", "width", "sequence", "seconds")
    rows = [
        (float(f), m, 256.0, 256.0, s) for f in range(3) for m, s in ((256, 1e-5), (512, slow_s))
    ]
    for precision in PRECISIONS:
        matmuls = [(1.0, *row) for row in rows]
        columns = ("ranks", "form", "m", "n", "k", "seconds")
        kernels[f"matmul@{precision}"] = table(columns, *matmuls)
        for kind in attentions:
            kernels[f"{kind}@{precision}"] = table(shape, (1.0, 256.0, 2.0, 64.0, 256.0, 1e-4))
        for kind in MEASURED_BY_BYTES:
            kernels[f"{kind}@{precision}"] = curve((1e3, 1e-6), (1e6, 1e-5))
        kernels |= {f"{kind}@{precision}": own for kind, own in of_one.items()}
    for kind in MEASURED_BY_BYTES:
        kernels[f"{kind}@int64"] = kernels[f"{kind}@bf16"]
    return replace(load_machine(name), profile=Profile(kernels=kernels))
