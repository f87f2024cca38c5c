"""How long the whole of Frontier takes: arrays, and the traffic of all axes of 32,768 ranks.

Run with `python -m benchmarks.network_scale`. `first` has routes to find in a session, which
`second` finds there. The plan is gpt-640b's tp=8, y=2, z=64, dp=32.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import click
import numpy as np

from benchmarks._command import Row, benchmark
from topologies.machine import Machine
from topologies.machine_files import load_machine
from topologies.placement_names import parse_placement
from topologies.routing.rings import rings_together
from topologies.routing.wiring import wiring
from topologies.session import Session

COLUMNS = ("part", "seconds", "least_bytes_per_s", "peak_bytes")
PLACEMENTS = ("contiguous", "scheduler", "random")
AXES = ("tp", "y", "z", "dp")


@dataclass(frozen=True)
class World:
    """A machine, and the grid of ranks on it."""

    machine: str = "frontier"
    sizes: tuple[int, ...] = (8, 2, 64, 32)

    def axes(self) -> list[np.ndarray]:
        """The groups of x, y, z and data, (groups, members) each; x varies fastest."""
        grid = np.arange(int(np.prod(self.sizes))).reshape(self.sizes[::-1])
        last = [np.moveaxis(grid, len(AXES) - 1 - i, -1) for i in range(len(AXES))]
        return [moved.reshape(-1, n) for moved, n in zip(last, self.sizes, strict=True)]

    def least_bytes_per_s(self, machine: Machine, placement: str) -> float:
        """Route and share the traffic of all axes at once: the rate of the slowest ring."""
        axes = self.axes()
        placed = parse_placement(placement, machine, int(np.prod(self.sizes)))
        found = rings_together(machine, placed, axes)
        return min(ring.bytes_per_s for _, different in found for ring in different)


SMALLEST = World("4x8xH100,8xNDR", (2, 2, 4, 2))


@benchmark(*COLUMNS)
@click.option("--placement", "placements", multiple=True, default=PLACEMENTS, show_default=True)
def main(*, placements: tuple[str, ...], smallest: bool) -> list[Row]:
    """How long the network of a whole machine takes: arrays, and the traffic of all axes."""
    world = SMALLEST if smallest else World()
    rows: list[Row] = []

    def timed(part: str, run: Callable[[], float | None]) -> None:
        started = time.process_time()
        slowest = run()
        seconds = time.process_time() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        rows.append(dict(zip(COLUMNS, (part, seconds, slowest, peak), strict=True)))

    def build() -> None:
        wiring(load_machine(world.machine).network)

    timed("build", build)
    for placement in placements:
        machine = load_machine(world.machine)
        with Session():
            for turn in ("first", "second"):
                run = partial(world.least_bytes_per_s, machine, placement)
                timed(f"{placement}, {turn}", run)
    return rows


if __name__ == "__main__":
    main()
