"""Recipes: in which format linears multiply, and by which scales values get into it.

A format has few exponents, so a value is multiplied by a scale first, and the product of two
operands is divided by both of theirs. A recipe says of how many values a scale is, and when it is
known: from the values themselves, or from those of earlier steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from topologies.records import record
from workload.errors import PlanCannotRunError, PlanError
from workload.plan_fields import PlanFields
from workload.rules.table import rule_of

NO_RECIPE = "none"
FP8 = "fp8"  # the recipe that each software stack has its own way of, printed as precision=fp8
E4M3, E5M2, E2M1 = "e4m3", "e5m2", "e2m1"
LARGEST: Mapping[str, float] = MappingProxyType({E4M3: 448.0, E5M2: 57344.0, E2M1: 6.0})
INPUT, WEIGHT, GRADIENT = "input", "weight", "gradient"  # what an operand is
Block = tuple[int, int]  # rows and columns that share a scale
WHOLE: Block = (0, 0)  # all of the tensor

DELAYED, CURRENT, BLOCKS, POWERS, TWO_LEVELS, OF_STACK = (
    "delayed", "current", "blocks", "powers", "two_levels", "stack",
)  # fmt: skip
HISTORY = 16  # steps whose largest values a delayed scale looks back on


@record
class Recipe:
    """One recipe.

    `dtype` is that of its matmuls, by which a machine's file has their peak. Inputs and weights are
    in `forward`, gradients in `backward`. How scales are made says `scaling`: `delayed`, from the
    largest values of the last steps; `current`, from the tensor's own largest value; `blocks`, in
    fp32 from a block's largest value; `powers`, powers of two in 8 bits likewise; `two_levels`, in
    8 bits, with one of the tensor; `stack`, as the software does it, inside the kernels before
    (`workload/lowering/recipes/stack_casts.py`). A block is `length` values along the sum; of
    weights a
    square if `square`. Rows of an expert are filled up to a multiple of `align`.
    """

    name: str
    words: str
    source: str
    dtype: str
    scaling: str
    forward: str = E4M3
    backward: str = E4M3
    length: int = 0
    square: bool = False
    align: int = 16

    def format_of(self, kind: str) -> str:
        """The format of an operand."""
        return self.backward if kind == GRADIENT else self.forward

    def block(self, kind: str, axis: int) -> Block:
        """What shares a scale in an operand that is summed along this axis of its two."""
        if self.scaling in (DELAYED, CURRENT):
            return WHOLE
        if kind == WEIGHT and self.square:
            return self.length, self.length
        return (1, self.length) if axis else (self.length, 1)

    @property
    def is_of_stack(self) -> bool:
        """Whether it is a stack that knows how values are scaled, and no program says it."""
        return self.scaling == OF_STACK

    @property
    def of_tensors(self) -> bool:
        """Whether one scale is of a whole tensor, so that its parts can be gathered in 8 bits."""
        return self.scaling in (DELAYED, CURRENT, OF_STACK)

    @property
    def sends_rows(self) -> bool:
        """Whether a row can be sent in 8 bits, since its scales are of its own values alone."""
        return self.scaling in (BLOCKS, POWERS)

    def sent_bytes(self, columns: int) -> int:
        """What a row of so many values takes in 8 bits with its scales."""
        return columns + -(-columns // self.length) * (1 if self.scaling == POWERS else 4)

    @property
    def wants_largest(self) -> bool:
        """Whether a tensor's largest value must be known before it is cast."""
        return self.scaling in (CURRENT, TWO_LEVELS)

    @property
    def scale_dtype(self) -> str:
        """In what scales are kept."""
        return "uint8" if self.scaling in (POWERS, TWO_LEVELS) else "fp32"


RECIPES = (
    Recipe(
        name="fp8-delayed",
        words="by one scale for each tensor, from the largest values of the last 16 steps",
        source="NVIDIA Transformer Engine, DelayedScaling: hybrid, algorithm max, and the history "
        "of its examples; scales follow once in a step, not in each micro-batch",
        dtype="fp8",
        scaling=DELAYED,
        backward=E5M2,
    ),
    Recipe(
        name="fp8-tensorwise",
        words="by one scale for each tensor, from its own largest value",
        source="NVIDIA Transformer Engine, Float8CurrentScaling: hybrid; pytorch/ao, float8, "
        "tensorwise, whose weights are gathered in fp8",
        dtype="fp8",
        scaling=CURRENT,
        backward=E5M2,
    ),
    Recipe(
        name="fp8-blockwise",
        words="by a scale for each 128 values along the sum, of weights for each 128 x 128",
        source="DeepSeek-V3 (2412.19437), section 3.3; NVIDIA Transformer Engine, "
        "Float8BlockScaling",
        dtype="fp8",
        scaling=BLOCKS,
        length=128,
        square=True,
    ),
    Recipe(
        name="mxfp8",
        words="by a power of two for each 32 values along the sum",
        source="OCP Microscaling Formats (MX) v1.0, sections 5.3.1 and 6.3; NVIDIA Transformer "
        "Engine, MXFP8BlockScaling: E4M3 for gradients too",
        dtype="mxfp8",
        scaling=POWERS,
        length=32,
        align=32,
    ),
    Recipe(
        name="nvfp4",
        words="by a scale in E4M3 for each 16 values along the sum, of weights for each 16 x 16, "
        "and one for the tensor",
        source="NVIDIA, Pretraining Large Language Models with NVFP4 (2509.25149)",
        dtype="nvfp4",
        scaling=TWO_LEVELS,
        forward=E2M1,
        backward=E2M1,
        length=16,
        square=True,
        align=128,
    ),
    Recipe(
        name=FP8,
        words="at the device's fp8 rate, operands cast before",
        source="NVIDIA Transformer Engine, user guide, FP8 primer; each stack's own",
        dtype="fp8",
        scaling=OF_STACK,
        backward=E5M2,
    ),
)
_BY_NAME = {each.name: each for each in RECIPES}
RECIPE_NAMES = (NO_RECIPE, *_BY_NAME)


def recipe_of(name: str) -> Recipe:
    """A recipe by its name.

    >>> recipe_of("mxfp8").block(GRADIENT, axis=1)
    (1, 32)
    """
    return _BY_NAME[name]


def recipe_refusal(plan: PlanFields) -> str:
    """Why a plan cannot have its recipe; "" where it can."""
    recipe = _BY_NAME.get(plan.training.recipe)
    if recipe is None:
        return ""
    if recipe.is_of_stack:
        given = plan.training.precision
        return "" if given == "bf16" else f"has all else in bf16, not in precision={given}"
    if plan.training.matmul_forms == "tuned":
        return "has operands in the layouts of plain forms; leave matmul_forms=tuned out"
    if (
        rule_of(plan.training.optimizer).zeroth_order
        or rule_of(plan.training.optimizer).in_backward
    ):
        rule = plan.training.optimizer
        return f"casts weights once in a step, and optimizer={rule} changes them within"
    return ""


def params_refusal(plan: PlanFields) -> str:
    """Why a plan's weights cannot be kept in 8 bits; "" where they can."""
    recipe = _BY_NAME.get(plan.training.recipe)
    for key, able in (("precision", "bf16"), ("optimizer", "adamw"), ("offload", "none")):
        if (value := plan.value(key)) != able:
            return f"is supported with {key}={able} alone, not {key}={value}"
    if plan.training.master == "remainders":
        return "leaves no bf16 weights that master=remainders could complete; take master=fp32"
    if recipe and recipe.scaling == TWO_LEVELS:
        return f"keeps weights in 8 bits, and recipe={recipe.name} multiplies in 4"
    if recipe and not recipe.of_tensors and (plan.zero == 3 or plan.z > 1):
        return (
            f"gathers parts of weights in 8 bits, and the scales of recipe={recipe.name} are of "
            "blocks of whole ones: take zero=1 or 2 and z=1"
        )
    if recipe is None:
        return "needs linears that multiply in 8 bits: give precision=fp8 or an 8-bit recipe"
    return ""


def recipe_words(words: dict[str, Any]) -> dict[str, Any]:
    """The words of a plan, in which `precision` may name a recipe: all else is in bf16 then.

    >>> recipe_words({"precision": "mxfp8"})
    {'precision': 'bf16', 'recipe': 'mxfp8'}
    """
    if words.get("precision") not in _BY_NAME:
        return words
    if words.get("recipe", NO_RECIPE) not in (NO_RECIPE, words["precision"]):
        both = f"precision={words['precision']} and recipe={words['recipe']}"
        raise PlanError(f"{both} name two recipes: give one of them")
    return {**words, "precision": "bf16", "recipe": words["precision"]}


def check_runs(plan: PlanFields, *, saves: bool = False) -> None:
    """Refuse a recipe that no program says in full, and to save what checkpoints do not keep."""
    if plan.training.recipe == NO_RECIPE:
        return
    recipe = recipe_of(plan.training.recipe)
    if recipe.is_of_stack:
        known = ", ".join(name for name in _BY_NAME if name.startswith(f"{FP8}-"))
        raise PlanError(
            "precision=fp8 is that of a software stack, which is predicted alone; a plan that runs "
            f"names its recipe: one of {known}"
        )
    if saves and recipe.scaling == DELAYED:
        raise PlanCannotRunError(
            f"recipe={recipe.name} has scales of earlier steps, which checkpoints do not keep; "
            "leave --save out, or take recipe=fp8-tensorwise"
        )
