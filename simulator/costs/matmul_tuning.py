"""The choice of matmul forms on a machine, and what it saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.costs.analytic import ComputeCosts
from topologies.records import record
from workload.gpt import GPT
from workload.lowering import lower
from workload.op import FORMS, STEP, Buffer, Op
from workload.passes.matmul_forms import Forms, Matmul, matmul_of, with_forms
from workload.plan import Plan
from workload.recipes.table import NO_RECIPE


@record
class Tuning:
    """The form chosen for each distinct matmul, and the time that a step saves by it.

    `compute_s` is saved where compute counts in the step's breakdown, `step_s` of the whole step.
    """

    forms: Forms
    compute_s: float
    step_s: float

    @property
    def transposed(self) -> list[Matmul]:
        """The matmuls that run in another form than their operands' layouts ask for."""
        return [matmul for matmul, form in self.forms.items() if matmul[0] != form]

    def as_dict(self) -> dict[str, Any]:
        """The tuning as it stands in JSON."""
        keys = ("form", "m", "n", "k", "dtype")
        return {
            "matmuls": len(self.forms),
            "transposed": [
                {**dict(zip(keys, matmul, strict=True)), "chosen": self.forms[matmul]}
                for matmul in self.transposed
            ],
            "compute_saved_s": self.compute_s,
            "step_saved_s": self.step_s,
        }


def is_tuned(forms: Forms) -> bool:
    """Whether any matmul is to run on transposed operands."""
    return any(matmul[0] != form for matmul, form in forms.items())


def fastest_forms(gpt: GPT, plan: Plan, costs: ComputeCosts) -> dict[Matmul, str]:
    """For each distinct matmul of a step the form that takes least time, transposing included.

    Nothing is transposed where that saves nothing. Micro-batches have the same matmuls, and all
    stages together those of one stage alone. Those of the update stay as they are.
    """
    alone = plan.changed(pp=1, vpp=1, schedule="1f1b", stage_layers=(), ends_as_layers=False)
    alone = alone.changed(recipe=NO_RECIPE, fp8_params=False)  # forms come before casts
    program = lower(gpt, alone.with_micro_batches(1))
    own = (op for op in reversed(program.ops) if op.kind == "matmul" and op.block != STEP)
    matmuls = {matmul_of(op): op for op in own}
    return {matmul: _fastest(op, program.buffers, costs) for matmul, op in sorted(matmuls.items())}


def _fastest(op: Op, buffers: Mapping[str, Buffer], costs: ComputeCosts) -> str:
    def seconds(form: str) -> float:
        ops, _ = with_forms([op], buffers, {matmul_of(op): form})
        return sum(map(costs.seconds, ops))

    plain: str = op.attributes["form"]
    return min((plain, *(form for form in FORMS if form != plain)), key=seconds)
