"""What a recipe of 4 bits wants of a plan that runs: whole blocks of 16 on every rank.

So no block has values of two ranks or bands, none is turned in part, and two values fill a byte;
Transformer Engine asks for multiples of 16 too. Rows of experts are filled up to whole blocks.
"""

from __future__ import annotations

from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.lowering import lower
from workload.plan import Plan
from workload.program import Program
from workload.recipes.table import NO_RECIPE, TWO_LEVELS, WEIGHT, recipe_of


def check_four_bits_of(gpt: GPT, plan: Plan) -> None:
    """Refuse a recipe of 4 bits on a plan that cuts its blocks."""
    if _in_four_bits(plan):
        check_four_bits(lower(gpt, plan))


def check_four_bits(program: Program) -> None:
    """Refuse what its kernels do not cast, by name."""
    plan = program.plan
    if not _in_four_bits(plan):
        return
    length = recipe_of(plan.training.recipe).length
    for op in program.ops:
        if op.kind != "quantise":
            continue
        how, parts = op.attributes, plan.grid.size(*op.attributes.get("column_axes", ()))
        rows = "rows of a weight" if how["operand"] == WEIGHT else "tokens of a micro-batch"
        # Rows of experts are filled up.
        sizes = [(rows, how["rows"])] if how["even"] else []
        sizes += [("columns", how["columns"])]
        sizes += [("columns of a band", band // parts) for band in how.get("bands", ())]
        for what, size in sizes:
            if size % length:
                raise PlanCannotRunError(
                    f"recipe={plan.training.recipe} runs with blocks of {length} that are whole "
                    "on each "
                    f"rank, and {op.label} has {size} {what}; take sizes and splits that leave "
                    f"multiples of {length}"
                )


def _in_four_bits(plan: Plan) -> bool:
    return (
        plan.training.recipe != NO_RECIPE and recipe_of(plan.training.recipe).scaling == TWO_LEVELS
    )
