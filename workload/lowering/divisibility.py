"""Whether a plan divides a model."""

from __future__ import annotations

from math import gcd, isqrt

from workload.errors import NearestError, PlanCannotRunError
from workload.exchange.table import model_refusal
from workload.gpt import GPT
from workload.lowering import hybrid_plans
from workload.models import moe, windows
from workload.plan import Plan
from workload.recipes.table import NO_RECIPE, recipe_of
from workload.recomputation.parts import model_refusal as recomputation_refusal
from workload.rules.table import rule_of
from workload.stages import chunk_layers

MOST = 4096  # of the lesser one of two that make a width, where divisors are looked for


def check(gpt: GPT, plan: Plan) -> None:
    """Refuse a plan that does not divide the model, naming what would, or cannot have its loss."""
    x, y = plan.tp, plan.y
    chunk_layers(gpt, plan)
    groups = {"kv_heads": gpt.attention.kv_heads} if gpt.attention.kv_heads else {}
    states = (
        {"ssm_heads": gpt.mamba2.heads, "ssm_groups": gpt.mamba2.groups} if gpt.mamba2.heads else {}
    )
    _divides("tp", x, {"heads": gpt.attention.heads, **groups, "ffn": gpt.ffn, **states})
    _divides("y", y, {"hidden": gpt.hidden})
    if plan.cp > 1:
        _divides("cp", plan.cp, {"sequence": gpt.sequence}, times=("2", 2))
        _divides("cp", plan.cp, states, times=("tp", x))
    if plan.context.heads > 1:
        _divides(
            "context_heads", plan.context.heads, {"heads": gpt.attention.heads, **groups}, ("tp", x)
        )
    if plan.cp > 1 and plan.context.kind == "ulysses":
        _divides("cp", plan.cp, {"heads": gpt.attention.heads, **groups}, times=("tp", x))
    if plan.sp:
        rows = plan.mbs * gpt.sequence // plan.cp
        _divides("tp", x, {"the rows of a micro-batch": rows})
    _check_loss(gpt, plan)
    dense_layers = gpt.layers - moe.layers_with_experts(gpt)
    if why := recomputation_refusal(gpt, dense_layers, plan.training.recompute):
        raise PlanCannotRunError(f"recompute={plan.training.recompute} {why}")
    _check_swiglu(gpt, plan)
    _check_experts(gpt, plan)
    _check_latent(gpt, plan)
    _check_windows(gpt, plan)
    _check_mtp(gpt, plan)
    for why in hybrid_plans.refusals(gpt, plan):
        raise PlanCannotRunError(why)
    rule = rule_of(plan.training.optimizer)
    if rule.zeroth_order and (gpt.goldfish_k or gpt.dropout):
        key, what = ("goldfish_k", "Goldfish loss") if gpt.goldfish_k else ("dropout", "dropout")
        raise PlanCannotRunError(
            f"optimizer={plan.training.optimizer} compares losses over all tokens, without "
            f"{what}; leave "
            f"{key} out or take another rule"
        )
    if gpt.goldfish_k and rule.in_backward:
        raise PlanCannotRunError(
            f"optimizer={plan.training.optimizer} updates weights in the backward pass, before "
            "it is known "
            "how many tokens Goldfish loss keeps; leave goldfish_k out or take another rule"
        )


def _check_loss(gpt: GPT, plan: Plan) -> None:
    """Refuse a loss in chunks that are not equal, or that no kernel makes."""
    if plan.training.loss_chunks > 1:
        rows = plan.mbs * gpt.sequence // plan.cp
        _divides("loss_chunks", plan.training.loss_chunks, {"the rows of a micro-batch": rows})
    said = (
        f"loss_chunks={plan.training.loss_chunks}"
        if plan.training.loss_chunks > 1
        else f"loss={plan.training.loss}"
    )
    if gpt.mtp.layers and said != "loss=plain":
        raise PlanCannotRunError(
            f"{said} does not support multi-token prediction, and {gpt.name} has mtp_layers="
            f"{gpt.mtp.layers}; leave {said} out"
        )
    if plan.training.loss == "fused" and plan.tp * plan.y > 1:
        raise PlanCannotRunError(
            f"loss=fused is one kernel over a token's whole vocabulary, which tp={plan.tp} and "
            f"y={plan.y} split; take tp=1 and y=1, or loss_chunks alone"
        )


def _check_swiglu(gpt: GPT, plan: Plan) -> None:
    if plan.training.fp8_swiglu_input and gpt.activation != "swiglu":
        raise PlanCannotRunError(
            f"fp8_swiglu_input=true keeps what SwiGLU reads, and {gpt.name} has "
            f"activation={gpt.activation}; leave it out"
        )


def _check_experts(gpt: GPT, plan: Plan) -> None:
    if why := model_refusal(gpt, plan):
        raise PlanCannotRunError(f"dispatcher={plan.experts.dispatcher} {why}")
    if not gpt.moe.experts:
        if plan.ep > 1 or plan.etp:
            raise PlanCannotRunError(
                f"ep={plan.ep} splits experts, and {gpt.name} has none; leave it out"
            )
        return
    _check_blocks_of_experts(gpt, plan)
    if gpt.moe.expert_latent:
        _check_latent_columns(gpt, plan)
    _divides("ep", plan.ep, {"experts": gpt.moe.experts})
    _divides(_axis_of_parts(plan), plan.expert_parts, {"expert_ffn": gpt.moe.expert_ffn})
    if gpt.moe.shared_ffn:
        _divides("tp", plan.tp, {"shared_ffn": gpt.moe.shared_ffn})
    if plan.training.optimizer == "lomo" or rule_of(plan.training.optimizer).zeroth_order:
        raise PlanCannotRunError(
            f"optimizer={plan.training.optimizer} does not know weights of experts ({gpt.name}'s "
            f"experts={gpt.moe.experts}); take adamw or sgd"
        )


def _axis_of_parts(plan: Plan) -> str:
    """The field of the plan that says into how many parts an expert's matrices are cut."""
    return "etp" if plan.etp else "tp"


def _check_blocks_of_experts(gpt: GPT, plan: Plan) -> None:
    """Refuse a split of experts' widths that cuts what shares a scale."""
    if plan.training.recipe == NO_RECIPE:
        return
    recipe = recipe_of(plan.training.recipe)
    over_x = _axis_of_parts(plan), plan.expert_parts, "expert_ffn"
    for axis, parts, name in (over_x, ("y", plan.y, "hidden")):
        whole = gpt.value(name)
        if cuts_blocks(plan.training.recipe, whole, parts):
            raise PlanCannotRunError(
                f"recipe={plan.training.recipe} has a scale for each {recipe.length} values of "
                "experts' "
                f"weights, and {axis}={parts} leaves {whole // parts} of {name}={whole}; take "
                f"fp8-tensorwise or {axis} so that whole blocks are left"
            )


def cuts_blocks(recipe: str, whole: int, parts: int) -> bool:
    """Whether so many parts of a width of experts cut what shares a scale in a recipe."""
    if recipe == NO_RECIPE or parts == 1 or recipe_of(recipe).of_tensors:
        return False
    return whole // parts % recipe_of(recipe).length != 0


def splits_experts(gpt: GPT, recipe: str, name: str, parts: int) -> bool:
    """Whether a width of a model's experts, if it has any, comes in so many parts of whole blocks
    of a recipe."""
    whole = gpt.value(name)
    return not gpt.moe.experts or (whole % parts == 0 and not cuts_blocks(recipe, whole, parts))


def _check_latent_columns(gpt: GPT, plan: Plan) -> None:
    """The linears of latent columns read and write whole rows of the stream."""
    has = f"{gpt.name}'s expert_latent={gpt.moe.expert_latent}"
    if plan.y > 1:
        raise PlanCannotRunError(f"y={plan.y} does not support {has}; use y=1")


def _check_latent(gpt: GPT, plan: Plan) -> None:
    if plan.context.latents and not gpt.latent.kv_rank:
        raise PlanCannotRunError(
            f"context_latents=true gathers what latent attention compresses, and {gpt.name} has "
            "kv_rank=0; leave it out"
        )
    if not gpt.latent.kv_rank:
        return
    if plan.y > 1:
        raise PlanCannotRunError(
            f"y={plan.y} splits the width of the residual stream, which latent attention "
            f"({gpt.name}'s kv_rank={gpt.latent.kv_rank}) reads whole; use y=1"
        )
    if plan.training.optimizer == "lomo" or rule_of(plan.training.optimizer).zeroth_order:
        raise PlanCannotRunError(
            f"optimizer={plan.training.optimizer} does not know weights of latent attention, "
            "which ranks of "
            "x hold in copies"
        )


def _check_windows(gpt: GPT, plan: Plan) -> None:
    told = {
        "sinks=true": gpt.attention.sinks,
        f"window={gpt.attention.window}": windows.has_windows(gpt),
    }
    told |= {f"{key}={gpt.value(key)}": gpt.value(key) for key in ("document", "documents")}
    those = [words for words, is_so in told.items() if is_so]
    if plan.training.attention == "unfused" and those:
        raise PlanCannotRunError(
            f"attention=unfused computes whole squares of scores alone, and {gpt.name} has "
            f"{those[0]}; use attention=flash"
        )


def _check_mtp(gpt: GPT, plan: Plan) -> None:
    if not gpt.mtp.layers:
        return
    if plan.training.optimizer == "lomo" or rule_of(plan.training.optimizer).zeroth_order:
        raise PlanCannotRunError(
            f"optimizer={plan.training.optimizer} does not know weights of mtp_layers "
            f"({gpt.name}'s "
            f"mtp_layers={gpt.mtp.layers}), which ranks of x hold in copies"
        )


def _divides(key: str, size: int, widths: dict[str, int], times: tuple[str, int] = ("", 1)) -> None:
    """Refuse a field that does not divide some widths, so many times or as it is."""
    word, factor = times
    parts = factor * size
    whole = [f"{name}={width}" for name, width in widths.items() if width % parts]
    if whole:
        axis, name = (f"{word}*{key}", key) if word else (key, "")
        why = f"{axis}={parts} does not divide {' and '.join(whole)}"
        raise NearestError(why, key, size, _divisors(gcd(*widths.values()), factor), name)


def _divisors(width: int, factor: int) -> list[int]:
    """What divides a width with so many times as much."""
    whole, rest = divmod(width, factor)
    low = [] if rest else [n for n in range(1, min(isqrt(whole), MOST) + 1) if whole % n == 0]
    return sorted({*low, *(whole // n for n in low)})
