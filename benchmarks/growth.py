"""How the time of a prediction grows with devices, layers, micro-batches and stages.

Run with `python -m benchmarks.growth`. `cold_s` is the processor time of the first prediction of a
session, with rings and programs to find; `warm_s` the least of those that follow. The exponents are
slopes of the logarithms between the first row of what grows and this one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import log

from benchmarks._command import Row, benchmark
from simulator.predict import predict
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.session import Session
from workload.gpt import GPT, find_model
from workload.plan import Plan
from workload.plan_text import parse_plan

COLUMNS = ("grows", "size", "cold_s", "warm_s", "cold_exponent", "warm_exponent")
WARM = 4
WIDE = "x=4,y=2,z=8,dp=rest,mbs=1,recompute=full"
GROUP = 128  # nodes of a dragonfly group of Frontier


@dataclass(frozen=True)
class Sizes:
    """How much of each there is, and the model and plan that grow."""

    model: str = "gpt-5b"
    wide: str = WIDE
    devices: tuple[int, ...] = (512, 2048, 8192, 32768, 131072, 262144)
    layers: tuple[int, ...] = (24, 48, 96, 192, 384)
    micro_batches: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)
    stages: tuple[int, ...] = (2, 4, 8, 16, 32)
    stage_devices: int = 512
    stage_x: int = 4


USUAL = Sizes()
SMALLEST = Sizes("tiny-30k", "tp=2,dp=rest,mbs=1", (8, 16), (2, 4), (1, 2), (2, 4), 16, 2)


@dataclass(frozen=True)
class Point:
    """A prediction, and the size that it is shown under."""

    size: int
    gpt: GPT
    plan: Plan
    machine: Machine

    def seconds(self) -> tuple[float, float]:
        """Processor seconds, cold and warm."""
        with Session():
            each = [self._once() for _ in range(1 + WARM)]
        return each[0], min(each[1:])

    def _once(self) -> float:
        began = time.process_time()
        predict(self.gpt, self.plan, self.machine)
        return time.process_time() - began


def points(sizes: Sizes) -> dict[str, list[Point]]:
    """What grows, and the predictions with more and more of it."""
    gpt = find_model(sizes.model)
    frontier = load_machine("frontier")
    nodes = max(frontier.nodes, max(sizes.devices) // frontier.devices_per_node)
    large = with_settings(frontier, {"nodes": nodes, "interconnect.groups": nodes // GROUP})
    wide = {n: parse_plan(sizes.wide, devices=n, batch=max(n // 8, 8)) for n in sizes.devices}
    fixed, last = wide[sizes.devices[0]], max(sizes.stages)
    stages = {
        n: parse_plan(
            f"tp={sizes.stage_x},pp={n},dp=rest,mbs=1",
            devices=sizes.stage_devices,
            batch=sizes.stage_devices * last // n,
        )
        for n in sizes.stages
    }
    deep = replace(gpt, layers=last)
    return {
        "devices": [Point(n, gpt, wide[n], large) for n in sizes.devices],
        "layers": [Point(n, replace(gpt, layers=n), fixed, frontier) for n in sizes.layers],
        "micro-batches": [
            Point(n, gpt, fixed.with_micro_batches(n), frontier) for n in sizes.micro_batches
        ],
        "stages": [Point(n, deep, stages[n], frontier) for n in sizes.stages],
    }


@benchmark(*COLUMNS)
def main(*, smallest: bool) -> list[Row]:
    """How the time of a prediction grows with devices, layers, micro-batches and stages."""
    rows = []
    for name, own in points(SMALLEST if smallest else USUAL).items():
        first: tuple[float, float] = (0.0, 0.0)
        for point in own:
            found = point.seconds()
            first = found if point is own[0] else first
            ratio = log(point.size / own[0].size)
            exponents = [
                log(now / then) / ratio if ratio else None
                for now, then in zip(found, first, strict=True)
            ]
            rows.append(dict(zip(COLUMNS, (name, point.size, *found, *exponents), strict=True)))
    return rows


if __name__ == "__main__":
    main()
