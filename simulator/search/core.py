"""The core space of a problem: the plans of which branch and bound proves that none is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.costs.analytic import compute_costs
from simulator.pool import Pool
from simulator.ranks.fabric import MachineFabric
from simulator.search.around import Judge
from simulator.search.bounds.nonmonotonic_latency import without_falls
from simulator.search.branch_and_bound import BranchAndBound
from simulator.search.neighbours import layers_on_stages
from simulator.search.problem import SearchProblem
from simulator.search.root_nodes import Machinery
from simulator.search.space import Space, spaces_of
from simulator.search.workers import WorkerSetup
from simulator.stacks.searched import fastest_kernels
from simulator.stacks.stack import EXECUTOR
from topologies.machine import Machine
from topologies.placement import Placement
from workload.overlaps import OVERLAPS
from workload.pipeline.schedule import STRAIGHT
from workload.plan import Plan
from workload.splits.plan_values import CHOICES

PLAIN = {"context_heads": 1, "shard": 0, "reshard": True, "fp8_dispatch": False}


def core_spaces(problem: SearchProblem, machine: Machine) -> list[Space]:
    """The core space in its parts; a PlanCannotRunError where no plan is legal."""
    found = []
    for space in spaces_of(problem):
        fixed = {**problem.fixed, "recipe": space.problem.recipe}
        kernels = fastest_kernels(problem.stack, problem.gpt, fixed, machine)
        # Which rows are sent is a matter of each plan: bounds/dispatched.py has the fewest.
        behaviour = replace(kernels.behaviour, own_rows=False)
        found.append(replace(space, problem=replace(space.problem, behaviour=behaviour)))
    return found


def tree_of(
    judge: Judge,
    spaces: Sequence[Space],
    machine: Machine,
    placement: Placement | None = None,
    pool: Pool | None = None,
) -> BranchAndBound:
    """The search tree of the parts of a core space."""
    problem = judge.problem
    kernels = fastest_kernels(problem.stack, problem.gpt, problem.fixed, machine)
    growing = without_falls(machine)
    fabric = MachineFabric(growing, problem.devices, placement)
    costs = compute_costs(growing, fabric.ranks_per_node, problem.devices, kernels)
    machinery = Machinery(costs, fabric, judge.room_bytes)
    setup = WorkerSetup([space.problem for space in spaces], machinery, judge)
    return BranchAndBound(spaces, setup, pool)


def is_in_core(problem: SearchProblem, plan: Plan) -> bool:
    """Whether a plan that can be run is of the core space of a problem."""
    fixed = problem.fixed
    kinds = (fixed["context_kind"],) if "context_kind" in fixed else CHOICES["context_kind"][:1]
    kinds = problem.several.get("context_kind", kinds)
    return (
        all(plan.value(key) == fixed.get(key, value) for key, value in PLAIN.items())
        and plan.pipeline.schedule in STRAIGHT
        and _is_overlapped(problem, plan)
        and plan.training.recompute in problem.recomputations
        and plan.cp <= fixed.get("cp", problem.most_context)
        and (plan.cp == 1 or plan.context.kind in kinds)
        and (plan.ep == 1 or plan.experts.dispatcher in problem.dispatchers)
        and ("etp" in fixed or plan.etp == 0 or (plan.etp == 1 and plan.ep % plan.tp == 0))
        and all(
            plan.value(key) == value
            for key, value in layers_on_stages(problem, plan.pp, plan.vpp).items()
        )
    )


def _is_overlapped(problem: SearchProblem, plan: Plan) -> bool:
    """Whether a plan overlaps what plans of the core space do: those of a stack what it always
    does, if no others are fixed."""
    if problem.stack == EXECUTOR and "overlap" not in problem.fixed:
        return {*plan.training.overlap} <= {*OVERLAPS}
    kept = problem.stack.plan_defaults(1, plan).get("overlap", plan.training.overlap)
    return {*plan.training.overlap} == {*problem.fixed.get("overlap", kept)}
