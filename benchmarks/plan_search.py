"""How long a search takes over the whole space, and how much memory its processes take together.

python -m benchmarks.plan_search
"""

from __future__ import annotations

import os
import resource
import time

from simulator.search import SearchProblem, search
from topologies.machine_files import load_machine
from topologies.placement import scheduler
from workload.gpt import find_model

QUESTIONS = (
    ("gpt-80b", "frontier", 8192, 8192),
    ("gpt-640b", "frontier", 32768, 8192),
    ("gpt-80b", "perlmutter", 1024, 1024),
)


def main() -> None:
    """Search for the best plan of each question."""
    workers = len(os.sched_getaffinity(0))
    for model, name, devices, batch in QUESTIONS:
        machine = load_machine(name)
        placed = scheduler(machine, devices)
        begun = time.perf_counter()
        problem = SearchProblem(find_model(model), devices, batch)
        *_, state = search(problem, machine, placement=placed, workers=workers)
        seconds = time.perf_counter() - begun
        own, theirs = (
            resource.getrusage(who).ru_maxrss
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        print(
            f"{model} on {devices:,} of {name}: {state.considered:,} plans, {state.fitting:,} may "
            f"fit, {state.simulated:,} simulated, optimal: {state.is_optimal}; {seconds:.1f} s on "
            f"{workers} cores, at most {(own + workers * theirs) / 2**20:.2f} GiB; "
            f"{state.found[0].step_s:.2f} s with {state.found[0].plan}"
        )


if __name__ == "__main__":
    main()
