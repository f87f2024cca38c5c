"""How long the whole of Frontier takes: arrays, and the traffic of all axes of 32,768 ranks.

Run with `python -m benchmarks.network_scale`. The bars are 2 s and 1 GB the first time, 0.2 s the
second. The plan is gpt-640b's x=8, y=2, z=64, data=32.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from topologies.machine import Machine
from topologies.machine_files import load_machine
from topologies.placement_names import parse_placement
from topologies.routing.rings import rings_together
from topologies.routing.wiring import wiring

SIZES = (8, 2, 64, 32)


def axes() -> list[np.ndarray]:
    """The groups of x, y, z and data, (groups, members) each; x varies fastest."""
    grid = np.arange(int(np.prod(SIZES))).reshape(SIZES[::-1])
    last = [np.moveaxis(grid, len(SIZES) - 1 - i, -1) for i in range(len(SIZES))]
    return [moved.reshape(-1, size) for moved, size in zip(last, SIZES, strict=True)]


def share(machine: Machine, placement: str) -> None:
    """Routes and shares the traffic of all axes at once."""
    found = rings_together(machine, parse_placement(placement, machine, 32768), axes())
    for name, (_, different) in zip(["x", "y", "z", "data"], found, strict=True):
        rates = sorted(ring.bytes_per_s / 1e9 for ring in different)
        print(f"    {name:4} {rates[0]:8.2f} to {rates[-1]:.2f} GB/s", file=sys.stderr)


def main() -> None:
    """Prints seconds and peak memory, first and second time."""
    start = time.perf_counter()
    wires = wiring(load_machine("frontier").network)
    print(f"build   {time.perf_counter() - start:6.3f} s  {wires.nic_links} NICs")
    for placement in sys.argv[1:] or ["contiguous", "scheduler", "random"]:
        for turn in ("first", "second"):
            start = time.perf_counter()
            share(load_machine("frontier"), placement)
            print(f"{turn:7} {time.perf_counter() - start:6.3f} s  {placement}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak    {peak / 1e9:6.3f} GB")


if __name__ == "__main__":
    main()
