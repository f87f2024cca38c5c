"""What a recipe of 4 bits wants of a plan that runs: whole blocks of 16 on every rank.

So no block has values of two ranks or bands, none is turned in part, and two values fill a byte;
Transformer Engine asks for multiples of 16 too.
"""

from __future__ import annotations

from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.lowering import lower
from workload.plan import Plan
from workload.program import Program
from workload.recipes.table import NO_RECIPE, TWO_LEVELS, WEIGHT, recipe_of


def check_four_bits_of(gpt: GPT, plan: Plan) -> None:
    """Refuse a recipe of 4 bits on a plan that cuts its blocks, or with experts."""
    if _in_four_bits(gpt, plan):
        check_four_bits(lower(gpt, plan))


def check_four_bits(program: Program) -> None:
    """Refuse what its kernels do not cast, by name."""
    plan = program.plan
    if not _in_four_bits(program.gpt, plan):
        return
    length = recipe_of(plan.recipe).length
    for op in program.ops:
        if op.kind != "quantise":
            continue
        how, parts = op.attributes, plan.grid.size(*op.attributes.get("axes", ()))
        rows = "rows of a weight" if how["operand"] == WEIGHT else "tokens of a micro-batch"
        sizes = [(rows, how["rows"]), ("columns", how["columns"])]
        sizes += [("columns of a band", band // parts) for band in how.get("bands", ())]
        for what, size in sizes:
            if size % length:
                raise PlanCannotRunError(
                    f"recipe={plan.recipe} runs with blocks of {length} that are whole on each "
                    f"rank, and {op.label} has {size} {what}; take sizes and splits that leave "
                    f"multiples of {length}"
                )


def _in_four_bits(gpt: GPT, plan: Plan) -> bool:
    if plan.recipe == NO_RECIPE or recipe_of(plan.recipe).scaling != TWO_LEVELS:
        return False
    if gpt.experts:
        raise PlanCannotRunError(
            f"recipe={plan.recipe} is run without experts, whose rows no kernel casts into 4 bits, "
            f"and {gpt.name} has experts={gpt.experts}; it is predicted alone"
        )
    return True
