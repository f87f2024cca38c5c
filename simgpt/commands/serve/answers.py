"""The answers of the page: what `simgpt predict` says, as JSON with the texts to show."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from simgpt import tables
from simgpt.advice import does_not_fit, starved
from simgpt.commands.prediction_text import facts, memory_parts, time_parts
from simgpt.commands.serve.asked import FieldError, asked_of, step_asked
from simgpt.commands.serve.changes import best_neighbours, fitting
from simgpt.question import Question
from simulator.answer_words import EVENLY, assumes_balance, peak_of_mfu
from simulator.explain.mfu_waterfall import mfu_waterfall, waterfall_rows
from simulator.predict import Prediction
from simulator.stacks import StackError, load_stack, stack_names
from simulator.stacks.job import Job
from simulator.stacks.logged import HARDWARE
from topologies.errors import MachineError, SimgptError, TooFewDevicesError, UnitError
from topologies.files.reading import UserFile
from topologies.session import Session
from topologies.shipped import machine_names
from workload.descriptions.read import described_model, model_from_json
from workload.errors import ModelError, PlanCannotRunError, PlanError
from workload.gpt import GPT, model_names
from workload.model.fields import KEYS
from workload.plan_text import ALIASES

QUESTION = UserFile("question", SimgptError)
FIELDS = {  # whose field an error is about, the narrower errors first
    TooFewDevicesError: "devices",
    StackError: "stack",
    ModelError: "model",
    MachineError: "machine",
    UnitError: "machine",
    PlanError: "plan",
    PlanCannotRunError: "plan",
}


def answered(name: str, question: Any) -> dict[str, Any]:
    """The answer to a question of that name; what a command line would refuse has the same sentence
    as `error`, and the fields that are concerned."""
    from simgpt.cli import sentence_of

    try:
        with Session():
            return ANSWERS[name](question)
    except click.ClickException as error:
        return {"error": sentence_of(error), "fields": _fields_of(error, question)}
    except SimgptError as error:
        return {"error": str(error), "fields": _fields_of(error, question)}
    except MemoryError:
        return {"error": "this machine has too little memory for that", "fields": []}


def predicted(question: Any) -> dict[str, Any]:
    """The prediction of a step, with the command line that prints it."""
    asked = asked_of(question)
    step = step_asked(asked)
    prediction = step.predicted()
    further = {}
    if asked.tokens is not None:
        run = prediction.cost.training(asked.tokens, prediction.tokens_per_step)
        further = {"training": run.as_dict()}
    return {
        "command": asked.command,
        "prediction": prediction.as_dict(),
        "shown": _shown(prediction),
        "assumed": [f"{key}={value}" for key, value in step.job.assumed],
        "remarks": list(_remarks(asked, step.job, prediction)),
        **further,
    }


def mfu(question: Any) -> dict[str, Any]:
    """The rows of the MFU waterfall of a step: name, what would win it back, change and rest."""
    step = step_asked(asked_of(question))
    found = mfu_waterfall(step.predicted(), step.machine, step.placement)
    return {"rows": waterfall_rows(found.as_dict())}


def best(question: Any) -> dict[str, Any]:
    """The best plans that are one change away."""
    return best_neighbours(asked_of(question)).as_dict()


def fit(question: Any) -> dict[str, Any]:
    """The smallest change by which the plan fits."""
    return fitting(asked_of(question)).as_dict()


def read_config(question: Any) -> dict[str, Any]:
    """A pasted `config.json` as the text that a MODEL argument takes, with what it leaves open."""
    text = question.get("text") if isinstance(question, dict) else None
    if not isinstance(text, str):
        raise FieldError("config", "paste the text of a config.json")
    described = model_from_json(text)
    return {
        "model": _as_words(described.gpt),
        "remarks": list(described.notes_on(described.gpt, ())),
    }


def choices(_: Any) -> dict[str, Any]:
    """What ships: the names of models, machines and stacks."""
    stacks = [load_stack(name) for name in stack_names()]
    return {
        "models": list(model_names()),
        "machines": list(machine_names()),
        "stacks": [[stack.name, stack.title] for stack in stacks],
    }


ANSWERS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "predict": predicted,
    "mfu": mfu,
    "best": best,
    "fit": fit,
    "config": read_config,
    "choices": choices,
}


def _shown(prediction: Prediction) -> dict[str, Any]:
    """The numbers as `simgpt predict` prints them."""
    memory, step_s = prediction.memory, prediction.step_s
    return {
        "facts": facts(prediction),
        "mfu": _mfu(prediction),
        "range": prediction.range.words,
        "time": [
            (name, value, tables.seconds(value), tables.percent(value / step_s))
            for name, value in time_parts(prediction)
        ],
        "memory": [
            (role, nbytes, tables.gib(nbytes), tables.percent(nbytes / memory.peak_bytes))
            for role, nbytes in memory_parts(prediction)
        ],
        "peak": tables.gib(memory.peak_bytes),
        "capacity": tables.gib(memory.capacity_bytes),
    }


def _mfu(prediction: Prediction) -> tuple[str, str]:
    """The MFU as the stack's log counts it, or else with all of attention; and what it counts, and
    of which peak it is where linears have another."""
    log = prediction.logged
    as_logged = log is not None and log.counts != HARDWARE
    share = log.share if log is not None and as_logged else prediction.mfu
    counts = f"{log.counts} attention, as in the log" if log and as_logged else "full attention"
    peak = peak_of_mfu(prediction.as_dict())
    return tables.percent(share), counts + (f"; peak of {peak}" if peak else "")


def _remarks(asked: Question, job: Job, prediction: Prediction) -> list[str]:
    """What the command line says beside its tables."""
    described = described_model(asked.model)
    chosen = f"stack {job.stack.name} ({job.chosen})" if job.chosen else ""
    texts = [
        chosen,
        *described.notes_on(job.gpt, asked.model_set),
        *job.remarks,
        starved(prediction.plan),
    ]
    if assumes_balance(job.gpt):
        texts.append(EVENLY)
    if not prediction.memory.is_sure:
        texts.append(does_not_fit(prediction))
    return [text for text in texts if text]


def _fields_of(error: Exception, question: Any) -> list[str]:
    """The fields that an error is about: that of its kind and, of the plan's keys, those whose
    values the sentence repeats."""
    if isinstance(error, FieldError):
        return [error.field]
    if isinstance(error, click.BadParameter) and error.param is not None:
        name = error.param.name or ""
        return [name]
    found = [field for kind, field in FIELDS.items() if isinstance(error, kind)][:1]
    said = set(re.findall(r"[\w=]+", str(error)))
    if found == ["model"] and question.get("sequence") and "sequence" in said:
        found.append("sequence")
    if found == ["plan"]:
        plan = f"{question.get('plan', '')},batch={question.get('batch', '')}"
        for word in plan.split(","):
            key, _, value = word.partition("=")
            if f"{ALIASES.get(key, key)}={value}" in said:
                found.append(ALIASES.get(key, key))
    return found


def _as_words(gpt: GPT) -> str:
    """The fields of a model that are not the usual ones, as `layers=80,hidden=8192,…`."""
    given = gpt.flat()
    given["name"] = re.sub(r"[^\w.+-]+", "-", gpt.name) or "model"
    return ",".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in given.items()
        if key != "source" and value != KEYS[key].default
    )
