"""From a plan to another framework's settings.

What is written is read again, by `simgpt import`'s own reader, and compared with what was asked:
whatever a framework cannot be told comes back as something else, and is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simgpt.frameworks import axonn, deepspeed, megatron, torchtitan
from simgpt.frameworks.exported import Exported
from simgpt.frameworks.files import AXONN, BRIDGE, DEEPSPEED, MEGATRON, TORCHTITAN, Described
from simgpt.frameworks.imported_job import ImportedJob, shape_of, spelled
from simgpt.frameworks.importing import job_from, table_of
from simgpt.frameworks.layers import experts, fsdp, fusions
from simgpt.frameworks.recipes import packed, recipe_of
from simgpt.frameworks.rendering import COMMENTED
from simgpt.question import Question
from simgpt.step import Sources, batch_of, plan_table
from simulator.stacks import Stack, is_shipped, load_stack
from simulator.stacks.effects import in_effect, same_order
from simulator.stacks.job import Job, job_of
from simulator.stacks.runs import Runs
from simulator.stacks.stack import EXECUTOR
from workload.descriptions.described import BEYOND
from workload.descriptions.read import described_model
from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.grid import AXES, axes_of
from workload.lowering import check
from workload.plan import Plan, text_of
from workload.plan_text import plan_words
from workload.recipes.table import FP8, NO_RECIPE
from workload.recomputation.parts import parts_of
from workload.stages import chunk_layers

Writer = Callable[[Mapping[str, Any]], dict[str, Any]]
WRITERS: Mapping[str, Writer] = {
    MEGATRON: megatron.written,
    BRIDGE: megatron.written,
    TORCHTITAN: torchtitan.written,
    DEEPSPEED: deepspeed.written,
    AXONN: axonn.written,
}
IN_FP8 = (MEGATRON, BRIDGE, TORCHTITAN)  # frameworks that are told whether linears are in fp8
ALONE = ("tp", "pp", "cp", "y", "z")  # sizes that need not be written where they are 1


def exported(question: Question, framework: str, model: GPT | None = None) -> Exported:
    """The settings by which a framework runs the step of a question, or of a `model` in place of
    the question's; what the plan does not say is as the question's stack has it, the framework's
    own if it names none. A PlanCannotRunError names what the framework has no setting for."""
    own = load_stack(question.stack or table_of(framework)["stack"])
    gpt = Sources().model(question) if model is None else model
    batch, words = batch_of(question, gpt), plan_table(question.plan)
    return exported_job(
        question, job_of(gpt, words, own, devices=question.devices, batch=batch), framework, gpt
    )


def exported_job(
    question: Question, job: Job, framework: str, model: GPT | None = None
) -> Exported:
    """The settings by which a framework runs the job of a question, whose `model` is read again
    unless it is given; a PlanCannotRunError names what the framework has no setting for."""
    gpt = Sources(tells=False).model(question) if model is None else model
    beyond = described_model(question.model).beyond if question.model else ()
    table = table_of(framework)
    _check_axes(job.plan, job.stack, table)
    if gpt.moe.experts and not table.get("experts", True):
        raise PlanCannotRunError(f"{table['title']} has no layers of experts, {gpt.name} has")
    if gpt.pattern:
        raise PlanCannotRunError(f"{gpt.name} is a hybrid; export cannot write those yet")
    own = load_stack(table["stack"])
    if why := _refusal(table["title"], own, job):
        raise PlanCannotRunError(why)
    job.stack.check(job.plan, job.gpt)
    check(job.gpt, job.plan)
    if job.plan.training.recipe not in (NO_RECIPE, FP8) and framework != MEGATRON:
        raise PlanCannotRunError(
            f"recipe={job.plan.training.recipe} is not told in settings of {framework}; "
            "precision=fp8 is "
            "that of its stack; take --to megatron"
        )
    if job.plan.training.recipe == FP8 and framework not in IN_FP8:
        raise PlanCannotRunError(f"{table['title']} has no setting for precision=fp8")
    fields = {**fields_of(gpt, job), "beyond": beyond}
    fields["order"] = _order_of(job.plan, own)
    settings = _simple(table, fields) | WRITERS[framework](fields | {"table": table})
    if framework == BRIDGE:
        settings = recipe_of({k: v for k, v in settings.items() if k not in megatron.UNTIMED})
        settings |= packed(fields)
    devices = job.plan.grid.ranks
    again = _read_again(framework, settings, devices, fields["model"])
    notes = (*_compared(job, gpt, again, table), *_not_asked(question, job, again))
    if gpt.moe.experts and "model" in table.get("elsewhere", {}):
        notes += (f"experts={gpt.moe.experts} are told in {table['elsewhere']['model']}",)
    lacking = [each for each in beyond if each not in table.get("beyond", {})]
    if lacking and framework in (MEGATRON, BRIDGE):
        notes += tuple(f"{BEYOND[each]}, which the model has, have no setting" for each in lacking)
    if framework in (MEGATRON, BRIDGE):
        notes += fusions.notes(fields) + fsdp.notes(fields) + experts.notes(fields)
    if framework == MEGATRON and not megatron.scales_rope(fields):
        notes += (f"rope_scaling={fields['rope_scaling']}, which the model has, has no setting",)
    stack = job.stack.name if again.question.stack != job.stack.name else ""
    if stack and (framework not in COMMENTED or not is_shipped(stack)):
        whose = stack if is_shipped(stack) else "and its file"
        notes += (
            f"`simgpt import` reads this as of {again.question.stack}: give it --stack {whose}",
        )
        stack = ""
    return Exported(framework, settings, notes, devices, stack)


def fields_of(gpt: GPT, job: Job) -> dict[str, Any]:
    """The fields of a model and a plan by which writers go."""
    fields = {**gpt.flat(), **job.plan.flat(), "stack": job.stack.name}
    fields |= {"family": job.stack.family, "kernels": job.stack.own_kernels}
    fields["exchange"] = job.stack.exchange(job.plan)
    return fields | {"model": spelled(gpt)[0]}


def _refusal(title: str, own: Stack, job: Job) -> str:
    """Why the framework's own stack does not run a plan, but for overlaps that nobody asked for."""
    plan = job.plan
    if "overlap" in dict(job.assumed):
        overlap = own.plan_defaults(1, plan).get("overlap", plan.training.overlap)
        plan = plan.changed(overlap=tuple(overlap))
    return Runs(title, own.can, own.messages).refusal(plan, job.gpt)


def _order_of(plan: Plan, own: Stack) -> str:
    """The order of the plan's ranks as the framework's stack names it."""
    wide = [axis for axis in AXES if plan.value(axis) > 1]
    known = own.can.get("order", ())
    return next((each for each in known if same_order(each, plan.order, wide)), plan.order)


def _simple(table: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are one field each."""
    settings: dict[str, Any] = {}
    for field, name in table.get("numbers", {}).items():
        if field not in ALONE or fields[field] != 1 or not table.get("prefix"):
            settings[name] = fields[field]
    for name, told in table.get("switches", {}).items():
        if all(fields[field] == value for field, value in told.items()):
            settings[name] = True
    for name, words in table.get("words", {}).items():
        if words["field"] == "context_kind" and fields["cp"] == 1:
            continue
        for word, value in words["values"].items():
            if fields[words["field"]] == value:
                settings.setdefault(name, word)
    return settings


def _check_axes(plan: Plan, stack: Stack, table: Mapping[str, Any]) -> None:
    """Refuse axes that the framework's settings do not know, whatever its stacks do."""
    known = table.get("axes", stack.can["axes"])
    lacking = [axis for axis in AXES if plan.value(axis) > 1 and axis not in known]
    if lacking:
        raise PlanCannotRunError(
            f"{table['title']} has no setting for {lacking[0]}={plan.value(lacking[0])}; "
            f"of the axes it has {', '.join(known)}"
        )


def _read_again(
    framework: str, settings: Mapping[str, Any], devices: int, model: str
) -> ImportedJob:
    elsewhere = "model" in table_of(framework).get("elsewhere", {})
    described = Described(framework, settings)
    given = model if elsewhere else None
    return job_from([described], devices=devices, model=given, changed={})


def _compared(job: Job, gpt: GPT, again: ImportedJob, table: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on what was assumed and cannot be told, and on what is told elsewhere; a
    PlanCannotRunError names what was asked for and cannot be told."""
    title, elsewhere = table["title"], table.get("elsewhere", {})
    if again.refused or again.gpt is None:
        why = again.refused[0].why if again.refused else "the model is none that it names"
        raise PlanCannotRunError(f"{title} cannot be told this: {why}")
    devices = job.plan.grid.ranks
    given = dict(again.plan)
    if given.get("ep", 1) > 1 and "dispatcher" not in given:  # the usual one of its own stack
        given["dispatcher"] = load_stack(again.question.stack).usual_exchange.dispatcher
    read = job_of(again.gpt, given, job.stack, devices=devices, batch=again.question.batch)
    assumed = {key for key, _ in job.assumed} - {"batch", "mbs"}  # no stack's own choice
    for key, (own, other) in _differences(job, gpt, read, again.gpt).items():
        if key in elsewhere:
            yield f"{key}={text_of(own)} is told in {elsewhere[key]}"
        elif key in assumed:
            yield (
                f"with these settings {title} runs {key}={text_of(other)}, where the stack "
                f"{job.stack.name} assumes {key}={text_of(own)}; to predict what will run, put "
                f"{key}={text_of(other)} into --plan"
            )
        else:
            raise PlanCannotRunError(
                f"{title} has no setting for {key}={text_of(own)}; it would run "
                f"{key}={text_of(other) or 'none'}"
            )


def _not_asked(question: Question, job: Job, again: ImportedJob) -> Iterator[str]:
    """Sentences on sizes that the settings have and that nobody gave."""
    words, plan = plan_words(plan_table(question.plan)), job.plan
    batch, ranks = plan.batch, plan.grid.ranks // (plan.tp * plan.pp * plan.cp)
    given = question.batch is not None or question.batch_tokens is not None
    if not given and "batch" not in words and again.question.batch is not None:
        yield (
            f"batch not given: {batch:,}, one micro-batch of {plan.mbs:,} for each of the "
            f"{ranks:,} data-parallel ranks; --batch says another"
        )
    if "mbs" not in words and "mbs" in again.plan:
        yield (
            f"mbs not given: {plan.mbs:,}, all that a rank has of the batch; "
            "mbs=1 in --plan says another"
        )


def _differences(job: Job, gpt: GPT, read: Job, other: GPT) -> dict[str, tuple[Any, Any]]:
    """Where two jobs differ, by the plan's or the model's keys."""
    one = told(job.plan, gpt, job.stack)
    two = told(read.plan, other, read.stack)
    one |= shape_of(gpt)
    two |= shape_of(other)
    return {key: (one[key], two.get(key)) for key in one if one[key] != two.get(key)}


def told(plan: Plan, gpt: GPT, stack: Stack = EXECUTOR) -> dict[str, Any]:
    """A plan's keys without what has no effect on a stack: an overlap of nothing, an order of one
    rank. Two plans with the same are the same step."""
    keys = plan.as_dict() | {"overlap": tuple(in_effect(plan, gpt, stack.messages))}
    chunks = [len(layers) for layers in chunk_layers(gpt, plan)]
    keys |= {"stage_layers": tuple(chunks), "ends_as_layers": False}
    sharded = plan.zero > 0 and plan.dp * plan.cp > 1
    keys["zero"] = plan.zero if sharded else 0
    keys["shard"] = plan.shard if sharded and plan.shard != plan.dp else 0
    keys["sp"] = plan.sp and plan.tp > 1
    keys["reshard"] = plan.reshard or not (plan.z > 1 or keys["zero"] == 3)
    keys["schedule"] = plan.pipeline.schedule if plan.pp > 1 else "1f1b"
    keys["order"] = [axis for axis in axes_of(plan.order) if plan.value(axis) > 1]
    keys["etp"] = 0 if plan.etp == plan.tp else plan.etp
    keys["dispatcher"] = stack.exchange(plan).dispatcher
    keys["context_kind"] = plan.context.kind if plan.cp > 1 else ""
    if plan.training.precision != "bf16":
        keys["gradients"] = "fp32"
    word, _, count = plan.training.recompute.partition(":")
    if count and int(count) >= max(chunks):
        keys["recompute"] = word
    if parts := parts_of(plan.training.recompute):
        keys["recompute"] = "+".join(sorted(parts))
    return keys
