"""The search for the best plan: branch and bound over the whole space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from simulator.costs.analytic import compute_costs
from simulator.limits import check_measured
from simulator.predict import Prediction, predict
from simulator.ranks.fabric import MachineFabric
from simulator.search.asked.falling_times import without_falls
from simulator.search.branch_and_bound import BranchAndBound
from simulator.search.objective import Objective
from simulator.search.problem import SearchProblem
from simulator.search.process_pool import ProcessPool, SearchError
from simulator.search.progress import Progress
from simulator.search.root_nodes import Machinery
from simulator.search.space import spaces_of
from simulator.search.workers import WorkerSetup
from simulator.stacks.searched import fastest_kernels
from simulator.stacks.stack import EXECUTOR, Stack
from topologies.errors import MachineError
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.session import gc_paused, steps_in_session
from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.plan import Plan

__all__ = ["Progress", "SearchError", "SearchProblem", "best_plan", "checked", "search"]


@steps_in_session
def search(
    problem: SearchProblem,
    machine: Machine,
    *,
    placement: Placement | None = None,
    top: int = 1,
    workers: int = 1,
    capacity_bytes: int | None = None,
    objective: str = "time",
) -> Iterator[Progress]:
    """Search for the `top` best plans that fit into a device, with the problem's probability, state
    by state; the last state is the answer, optimal unless nobody waited for it. `objective` is what
    they are best in.

    With several `workers` as many processes bound and simulate. `capacity_bytes` stands for the
    largest peak that fits if given. A PlanCannotRunError says why there is no legal plan.
    """
    kernels = fastest_kernels(problem.stack, problem.gpt, problem.fixed, machine)
    check_measured(machine, kernels)
    problem = problem.on(machine)
    growing = without_falls(machine)
    fabric = MachineFabric(growing, problem.devices, placement)
    costs = compute_costs(growing, fabric.ranks_per_node, problem.devices, kernels)
    # Which rows are sent is a matter of each plan: bounds/dispatched.py has the fewest.
    spaces = spaces_of(replace(problem, habits=replace(kernels.habits, own_rows=False)))
    room = problem.room_bytes(machine) if capacity_bytes is None else capacity_bytes
    machinery = Machinery(costs, fabric, room)
    goal = Objective(objective, machine, problem.devices)
    simulate = partial(_simulated, problem, machine, placement)
    setup = WorkerSetup([space.problem for space in spaces], machinery, goal, simulate)
    with ProcessPool(workers) as pool, gc_paused():
        nodes = BranchAndBound(spaces, setup, pool if workers > 1 else None, top)
        del spaces  # which need a lot of memory, and soon only the workers
        yield from nodes.run()


def best_plan(
    gpt: GPT,
    machine: Machine,
    devices: int,
    batch: int,
    *,
    fixed: Mapping[str, Any] | None = None,
    placement: Placement | None = None,
    stack: Stack = EXECUTOR,
) -> Prediction:
    """The fastest plan of all that fit, as predicted; a PlanCannotRunError where none fits."""
    problem = SearchProblem(gpt, devices, batch, fixed or {}, stack=stack)
    *_, answer = search(problem, machine, placement=placement)
    checked(answer)
    if not answer.found:
        least = f"{answer.least_bytes / 2**30:,.2f} GiB"
        raise PlanCannotRunError(
            f"none of {answer.considered:,} plans of {gpt.name} fits into the memory of {devices} "
            f"devices of {machine.full_name}; each needs {least} or more"
        )
    return answer.found[0]


def checked(state: Progress) -> Progress:
    """The same; a MachineError where no plan that may fit can be predicted."""
    if state.is_optimal and state.unpredicted and state.unpredicted == state.fitting:
        raise MachineError(
            f"none of {state.fitting:,} plans that may fit can be predicted: {state.reason}"
        )
    return state


def _simulated(
    problem: SearchProblem, machine: Machine, placement: Placement | None, plan: Plan
) -> Prediction | MachineError:
    """The plan's prediction, or why there is none: of what the machine is, of what the stack does
    not run together, or of how many slots a simulation may have."""
    gpt, stack = problem.stack.model(problem.gpt, plan.tp), problem.stack
    try:
        return predict(gpt, plan, machine, placement=placement, stack=stack)
    except (MachineError, PlanCannotRunError) as error:
        return MachineError(str(error))
