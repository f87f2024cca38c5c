"""A choice of matmul forms made by hand."""

from __future__ import annotations

from collections.abc import Mapping

from workload.gpt import GPT
from workload.lowering import lower
from workload.passes.matmul_forms import Matmul, matmul_of
from workload.plan import Plan


def swapped(gpt: GPT, plan: Plan, swap: Mapping[str, str]) -> dict[Matmul, str]:
    """Every matmul of the plan whose form `swap` names, in the form that it gives instead."""
    if not swap:
        return {}
    ops = [op for stage in range(plan.pp) for op in lower(gpt, plan, stage).ops]
    every = [matmul_of(op) for op in ops if op.kind == "matmul"]
    return {matmul: swap[matmul[0]] for matmul in every if matmul[0] in swap}
