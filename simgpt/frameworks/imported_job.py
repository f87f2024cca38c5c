"""A job as a framework's files describe it: the question that predicts it, and what of the files
the question does not carry."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

from simgpt.frameworks.reading import FrameworkError, Remark
from simgpt.question import Question
from simgpt.question_rows import plan_text
from topologies.errors import SimgptError
from topologies.records import record
from workload.descriptions.fields import KINDS
from workload.descriptions.from_table import model_from_table, with_fields
from workload.descriptions.read import described_model
from workload.gpt import GPT, find_model, model_names
from workload.model.fields import KEYS
from workload.models.rope_scaling import scaling_of
from workload.plan import text_of
from workload.plan_fields import PlanFields
from workload.plan_text import REST, plan_value
from workload.recipes.table import recipe_words
from workload.splits.plan_values import check_value

PLAN = ("tp", "y", "z", "pp", "vpp", "cp", "dp", "shard", "mbs")
ALWAYS = (  # what stacks have of their own
    *("zero", "overlap", "recompute", "attention", "gradients", "sp"),
)
UNTIMED = ("name", "source", "norm_eps", "rope_scaling")
OTHER = ("sequence", "rope_scaling")  # of a model that is a preset all the same
NEEDED = ("layers", "hidden", "heads", "sequence", "vocab")
BATCHES = ("train_batch_size",)  # settings that a batch of the user's stands in place of
# For what the files do not say.
MODEL, MACHINE, DEVICES, BATCH = "MODEL", "MACHINE", "DEVICES", "BATCH"
_PLAN_DEFAULTS = {key: each.default for key, each in PlanFields.KEYS.items()}


@record(kw_only=True)
class ImportedJob:
    """What files say of a job, and what of the files the question does not carry.

    The `question` has no machine, and no model, devices or batch where the files do not say them;
    `plan` has its plan's keys, each value in its kind. Of a model that the files say in part,
    `described` has the fields that are there, and `missing` names those that are not;
    `devices_words` say where the number of devices comes from, `stack_words` why it is that stack,
    `batch_words` in place of what the batch stands; `unknown` are settings that are in no table.
    """

    frameworks: tuple[str, ...]
    question: Question
    plan: Mapping[str, Any]
    gpt: GPT | None = None
    changes: tuple[Remark, ...] = ()
    refused: tuple[Remark, ...] = ()
    without_effect: tuple[Remark, ...] = ()
    settings: int = 0
    missing: tuple[str, ...] = field(default=())
    described: Mapping[str, Any] = field(default_factory=dict)
    devices_words: str = ""
    stack_words: str = ""
    unknown: tuple[str, ...] = ()
    batch_words: str = ""

    def command(self, machine: str | None = None) -> str:
        """The command that asks the question, with words in capitals for what is not known."""
        blanks = {"model": MODEL, "machine": MACHINE, "devices": DEVICES}
        blanks |= {} if "mbs" in self.plan else {"batch": BATCH}
        return shlex.join(["simgpt", "predict", *self.asked_on(machine).as_words(blanks)])

    def asked_on(self, machine: str | None) -> Question:
        """The question on a machine, where one is given."""
        return replace(self.question, machine=machine or "")


@record
class Instead:
    """What is taken in place of what files say: the user's stack, and batch in sequences or as it
    follows from the model; `exported_from` is the stack that a file of `simgpt export` names."""

    stack: str | None = None
    batch: int | Callable[[GPT], int] | None = None
    exported_from: str | None = None

    @property
    def taken_stack(self) -> str | None:
        """The stack in place of the one that settings ask for, if there is one."""
        return self.stack or self.exported_from


AS_SAID = Instead()


def in_place(job: ImportedJob, instead: Instead) -> ImportedJob:
    """The job with what is taken in place of what its files say, and words for that."""
    if stack := instead.taken_stack:
        words = "from which it was exported"
        if instead.stack:
            own = instead.exported_from or job.question.stack
            words = "--stack" + (f", in place of {own}" if own != stack else "")
        job = replace(job, question=replace(job.question, stack=stack), stack_words=words)
    if instead.batch is None:
        return job
    batch = instead.batch
    if not isinstance(batch, int):
        if job.gpt is None:
            raise FrameworkError(
                "--batch-tokens counts sequences of the model, which the files do not say: give "
                "--model, or --batch"
            )
        batch = batch(job.gpt)
    said = job.question.batch
    words = "" if said in (None, batch) else f"--batch, in place of the {said:,} of the files"
    refused = tuple(each for each in job.refused if each.name not in BATCHES)
    question = replace(job.question, batch=batch)
    return replace(job, question=question, batch_words=words, refused=refused)


def job_of_fields(
    fields: Mapping[str, Any],
    *,
    frameworks: tuple[str, ...],
    stack: str,
    devices: int | None,
    model: str | None,
    changed: Mapping[str, Any],
    remarks: tuple[tuple[Remark, ...], tuple[Remark, ...], tuple[Remark, ...]],
    settings: int,
) -> ImportedJob:
    """The job of fields that were read, with the model that the user names, if any, and the
    fields that he sets of it, not `checked` yet. A FrameworkError names what of a model is
    missing."""
    missing = [key for key in NEEDED if key not in {**fields, **changed}]
    gpt, model, model_set = _model_of(fields, model, changed, whole=not missing)
    unknown = model is None and bool({"layers", "hidden"} & fields.keys())
    plan = _plan_words(fields, stack)
    question = Question(
        model=model or "",
        model_set=model_set,
        plan=plan_text(plan),
        batch=fields.get("batch"),
        stack=stack,
        devices=devices,
    )
    return ImportedJob(
        frameworks=frameworks,
        question=question,
        plan=plan,
        gpt=gpt,
        changes=remarks[0],
        refused=remarks[1],
        without_effect=remarks[2],
        settings=settings,
        missing=tuple(missing) if unknown else (),
        described={key: fields[key] for key in KINDS if key in fields} | dict(changed),
    )


def like_preset(described: Mapping[str, Any]) -> GPT | None:
    """The preset that a model without a vocabulary is like in all other fields; None if none is."""
    for name in model_names():
        preset = find_model(name)
        table = {**described, "vocab": preset.vocab}
        try:
            gpt = model_from_table(table, "the model", name="the model")
        except SimgptError:
            return None
        if _is_like(preset, gpt):
            return preset
    return None


def _model_of(
    fields: Mapping[str, Any], model: str | None, changed: Mapping[str, Any], *, whole: bool
) -> tuple[GPT | None, str | None, dict[str, Any]]:
    """The model that the user names, or that the fields describe as a `whole`, with its MODEL and
    the fields to set of that."""
    if model is not None:
        gpt, model_set = described_model(model).gpt, dict(changed)
        if fields.get("sequence", gpt.sequence) != gpt.sequence:
            model_set = {"sequence": fields["sequence"]} | model_set
        return with_fields(gpt, model_set), model, model_set
    if not whole:
        return None, None, dict(changed)
    table = {key: value for key, value in fields.items() if key in KINDS} | dict(changed)
    gpt = model_from_table(table, "the model", name="the model")
    return gpt, *spelled(gpt)


def spelled(gpt: GPT) -> tuple[str, dict[str, Any]]:
    """A model as MODEL and `--model-set` have it: a preset with others of OTHER, or its fields.

    >>> spelled(find_model("llama-2-7b"))
    ('llama-2-7b', {})
    """
    shape = shape_of(gpt)
    for name in model_names():
        preset = find_model(name)
        if (preset.layers, preset.hidden) != (gpt.layers, gpt.hidden):
            continue  # most are, and a model made for another sequence is checked in full
        if _is_like(preset, gpt):
            own = shape_of(preset)
            return name, {k: gpt.value(k) for k in OTHER if own.get(k) != shape.get(k)}
    words = [
        f"{key}={text_of(value)}" for key, value in shape.items() if value != KEYS[key].default
    ]
    if gpt.ffn == 4 * gpt.hidden and gpt.mlp_bands == 1:
        words.remove(f"ffn={gpt.ffn}")
    return ",".join(words), {}


def _is_like(preset: GPT, gpt: GPT) -> bool:
    """Whether a model is a preset but for OTHER."""
    if preset.positions != gpt.positions:  # without rotations none are scaled
        return False
    others = {key: gpt.value(key) for key in OTHER}
    return shape_of(preset.changed(**others)) == shape_of(gpt)


def shape_of(gpt: GPT) -> dict[str, Any]:
    """The fields of a model without its labels, and without what no step's time depends on, a base
    that nothing turns by, what a loss of no weight is over, or a width of heads that is the usual
    one."""
    shape = gpt.flat()
    scaling = scaling_of(gpt.attention.rope_scaling)
    for key in UNTIMED:
        shape.pop(key)
    if scaling is not None and scaling.attention_factor != 1 and not gpt.latent.kv_rank:
        shape["rope_scaling"] = str(scaling)  # in kernels of its own (workload/passes)
    if gpt.positions != "rope":
        shape.pop("rope_base")
    if not gpt.moe.balance_loss:
        shape.pop("balance_over")
    if (gpt.width - gpt.latent.rope_width) * gpt.attention.heads == gpt.hidden:
        shape["head_width"] = 0
    return shape


def _plan_words(fields: Mapping[str, Any], stack: str) -> dict[str, Any]:
    """The keys of the plan that say something under a stack."""
    from simulator.stacks import load_stack

    said = {key: value for key, value in fields.items() if key in _PLAN_DEFAULTS}
    usual = _PLAN_DEFAULTS | load_stack(stack).plan_defaults(1, said)
    words: dict[str, Any] = {}
    for key in PLAN:
        value = fields.get(key, "rest" if key == "dp" else None)
        nothing = {"dp": (), "mbs": (), "shard": (0,)}.get(key, (0, 1))
        if value is not None and value not in nothing:  # beside context, shard=1 is not all ranks
            words[key] = value
    for key in ALWAYS:
        if key in fields:
            words[key] = fields[key]
    for key, value in fields.items():
        known = key in _PLAN_DEFAULTS and key not in (*words, *PLAN, "batch")
        if known and not value == _PLAN_DEFAULTS[key] == usual[key]:
            words[key] = value
    if words.get("precision") == "fp32":
        words.pop("gradients", None)
    return words


def checked(imported: ImportedJob) -> ImportedJob:
    """The job, with what simgpt refuses of its plan among the refused, where that can be told
    without a machine."""
    from simulator.stacks import load_stack
    from simulator.stacks.job import job_of

    question, stack = imported.question, load_stack(imported.question.stack)
    if imported.refused:
        return imported
    try:
        for key, value in recipe_words(dict(imported.plan)).items():
            if value != REST:  # which is of no plan by itself
                check_value(key, plan_value(key, value))
        if imported.gpt is None or question.devices is None:
            return imported
        job = job_of(
            imported.gpt,
            dict(imported.plan),
            stack,
            devices=question.devices,
            batch=question.batch,
        )
        stack.check(job.plan, job.gpt)
    except FrameworkError:
        raise
    except SimgptError as error:
        return replace(imported, refused=(Remark("the plan", "", str(error)),))
    return imported
