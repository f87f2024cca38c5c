"""How the time of a prediction grows with devices, layers, micro-batches and stages.

Run with `python -m benchmarks.growth`. `exponent` is the slope of the logarithms between the first
row of each and the last. `cold` is the processor time of the first prediction of a session, with
rings and programs to find; `warm` the least of those that follow.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import log

from simulator.predict import predict
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.session import Session
from workload.gpt import GPT, find_model
from workload.plan import Plan
from workload.plan_text import parse_plan

WARM = 4
MODEL = "gpt-5b"
WIDE = "x=4,y=2,z=8,data=rest,micro_batch=1,recompute=full"
DEVICES = (512, 2048, 8192, 32768, 131072, 262144)
LAYERS = (24, 48, 96, 192, 384)
MICRO_BATCHES = (1, 4, 16, 64, 256, 1024)
STAGES = (2, 4, 8, 16, 32)
GROUP = 128  # nodes of a dragonfly group of Frontier


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


def points() -> dict[str, list[Point]]:
    """What grows, and the predictions with more and more of it."""
    gpt = find_model(MODEL)
    frontier = load_machine("frontier")
    nodes = max(DEVICES) // frontier.devices_per_node
    large = with_settings(frontier, {"nodes": nodes, "interconnect.groups": nodes // GROUP})
    wide = {n: parse_plan(WIDE, devices=n, batch=max(n // 8, 8)) for n in DEVICES}
    fixed = wide[DEVICES[0]]
    return {
        "devices": [Point(n, gpt, wide[n], large) for n in DEVICES],
        "layers": [Point(n, replace(gpt, layers=n), fixed, frontier) for n in LAYERS],
        "micro-batches": [
            Point(n, gpt, fixed.with_micro_batches(n), frontier) for n in MICRO_BATCHES
        ],
        "stages": [
            Point(
                n,
                replace(gpt, layers=32),
                parse_plan(f"x=4,pipe={n},data=rest,micro_batch=1", devices=512, batch=16384 // n),
                frontier,
            )
            for n in STAGES
        ],
    }


def main() -> None:
    """Print a row for each size, and the exponents of the growth."""
    for name, own in points().items():
        found = [point.seconds() for point in own]
        for point, (cold, warm) in zip(own, found, strict=True):
            print(f"{name:14} {point.size:>8,}   cold {cold:7.3f} s   warm {1e3 * warm:8.1f} ms")
        ratio = log(own[-1].size / own[0].size)
        exponents = [log(found[-1][at] / found[0][at]) / ratio for at in (0, 1)]
        print(f"{name:14} exponent   cold {exponents[0]:7.2f}     warm {exponents[1]:8.2f}\n")


if __name__ == "__main__":
    main()
