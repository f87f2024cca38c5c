"""A job: the model, the plan and the stack that a user's words stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from simulator.stacks.all_overlaps import named_beside, of_plan, remark
from simulator.stacks.stack import EXECUTOR, Stack
from simulator.stacks.where import given_where
from topologies.errors import SimgptError
from topologies.records import record
from workload.errors import NearestError, PlanCannotRunError, PlanError
from workload.gpt import GPT
from workload.lowering import check
from workload.pipeline.layout import is_layout, layout_of
from workload.plan import Plan, text_of
from workload.plan_text import parse_plan, plan_words, split_plan
from workload.recipes.table import NO_RECIPE, RECIPE_NAMES, recipe_of
from workload.splits.plan_values import CHOICES, MOST

# Of what is assumed, in order; after it what else the stack gives, where that is not the default.
SAID = ("batch", "mbs", "overlap", "attention", "gradients", "zero", "recompute")
TRAINED = "bf16"
Refusal = Callable[[Mapping[str, Any]], SimgptError | None]  # why words are no plan that runs


@record(slots=False)
class Job:
    """What is predicted. `gpt` has the vocabulary that the stack makes of it; `remarks` say what
    was taken for what, `assumed` has the keys of the plan that the user did not give, `chosen` says
    why it is that stack, where the user names none."""

    gpt: GPT
    plan: Plan
    stack: Stack
    remarks: tuple[str, ...] = ()
    assumed: tuple[tuple[str, str], ...] = ()
    chosen: str = ""


def job_of(
    gpt: GPT,
    text: str | Mapping[str, Any],
    stack: Stack,
    *,
    devices: int | None = None,
    batch: int | None = None,
) -> Job:
    """The job of a plan's text or table, whose keys may be those of other frameworks.

    `precision=fp8` is the recipe of the stack's own; any other is the same under all stacks. What
    the plan does not say, the stack does.
    """
    words = plan_words(text)
    check_layout(text, gpt)
    _check_precision(words.get("precision", TRAINED))
    layers = max(gpt.layers // _size(words, "pp") // _size(words, "vpp"), 1)
    defaults = stack.plan_defaults(layers, words)
    if str(words.get("precision", TRAINED)) != TRAINED:
        defaults.pop("gradients", None)
    given = {**defaults, **words}
    if "recompute" in words:
        given["recompute"] = stack.recompute(str(words["recompute"]))
    beside = named_beside(words) if stack != EXECUTOR else None
    if beside is not None:
        given["overlap"] = tuple(beside)
    read = partial(_read, gpt, stack, devices=devices, batch=batch)
    refusal = partial(_refusal, read, gpt, stack)
    optional = given_where(stack.plan, words).keys() - words.keys()
    given = _where_it_can(given, {key: stack.plan.get(key) for key in sorted(optional)}, refusal)
    plan = _plan_of(given, read, refusal)
    if beside is not None:
        plan = of_plan(plan, gpt, stack.runs)
    said = {*words, "batch"} if batch is not None else {*words}
    shown = split_plan(stack.text(plan))
    further = (key for key in defaults if key not in SAID and key in shown)
    assumed = tuple((key, text_of(plan.value(key))) for key in (*SAID, *further) if key not in said)
    mine = stack.model(gpt, plan.tp)
    remarks = [] if beside is None else [remark(beside, plan)]
    return Job(mine, plan, stack, (*_remarks(gpt, mine, plan), *remarks), assumed)


def _read(
    gpt: GPT, stack: Stack, words: Mapping[str, Any], *, devices: int | None, batch: int | None
) -> Plan:
    """The plan of some words, with its layers on stages as the stack has them."""
    return stack.spread(parse_plan(words, devices=devices, batch=batch), gpt, words)


def check_layout(text: str | Mapping[str, Any], gpt: GPT) -> None:
    """Refuse a layout with other modules for further tokens than the model has."""
    for value in (text if isinstance(text, Mapping) else split_plan(text)).values():
        if is_layout(value) and (further := layout_of(value).further) != gpt.mtp.layers:
            raise PlanCannotRunError(
                f"the layout has {further} m, and {gpt.name} has mtp_layers={gpt.mtp.layers}"
            )


def _where_it_can(
    given: dict[str, Any], plain: Mapping[str, Any], refusal: Refusal
) -> dict[str, Any]:
    """The words without one that a stack gives for others, but with its `plain` value, where the
    plan runs only so: with sequence parallelism of a sequence that x does not divide, it does not.
    """
    if not plain or refusal(given) is None:
        return given
    ways = ({**given, key: value} for key, value in plain.items())
    known = [{key: value for key, value in way.items() if value is not None} for way in ways]
    return next((way for way in known if refusal(way) is None), given)


def _plan_of(given: Mapping[str, Any], read: Callable[..., Plan], refusal: Refusal) -> Plan:
    """The plan of some words. A field that divides nothing is refused here, with the nearest of
    the values that devices, plan and model all can have; any other refusal of the model or the
    stack comes where the plan is used."""
    why = refusal(given)
    if isinstance(why, NearestError):
        key = why.key
        raise why.among(lambda value: _is_of_another(refusal({**given, key: value}), key))
    return read(given)


def _refusal(
    read: Callable[[Mapping[str, Any]], Plan], gpt: GPT, stack: Stack, words: Mapping[str, Any]
) -> SimgptError | None:
    """Why a plan cannot be read, run by the stack, or split the model; None where it can."""
    try:
        plan = read(words)
        stack.check(plan, gpt)
        check(gpt, plan)
    except SimgptError as error:
        return error
    return None


def _is_of_another(why: SimgptError | None, key: str) -> bool:
    """Whether a refusal, if there is one, is that of another field's value."""
    return why is None or (isinstance(why, NearestError) and why.key != key)


def _check_precision(precision: Any) -> None:
    if precision not in CHOICES["precision"]:  # a recipe's name is read as one before
        known = ", ".join((*CHOICES["precision"], *RECIPE_NAMES[1:]))
        raise PlanError(f"precision={precision} is not supported; use one of {known}")


def _remarks(gpt: GPT, mine: GPT, plan: Plan) -> Iterator[str]:
    """What was taken for what, of the model as it was asked for and as a device has it."""
    if plan.training.recipe != NO_RECIPE:
        yield f"{plan.training.recipe}: the layers' linears {recipe_of(plan.training.recipe).words}"
    if mine.vocab != gpt.vocab:
        how = "padded" if mine.vocab > gpt.vocab else "cut"
        yield f"vocabulary {how} to {mine.vocab:,}"


def _size(words: Mapping[str, Any], key: str) -> int:
    """A size for the number of layers of a chunk; what is wrong with it the plan's reader says."""
    text = str(words.get(key, "1"))
    return max(int(text), 1) if text.isdecimal() and len(text) <= len(str(MOST)) else 1
