"""The question that several commands ask: which step, of which model, on which machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from simgpt import options
from simgpt.arguments.model import model_of
from simgpt.commands import predict
from topologies.machine import Machine
from topologies.placement import Placement
from workload.gpt import GPT
from workload.plan import Plan

SHARED = (
    "model",
    "machine",
    "devices",
    "plan",
    "batch",
    "batch_tokens",
    "settings",
    "model_fields",
    "placement",
)


@dataclass(frozen=True)
class StepQuestion:
    """What the words of a command line stand for that names a step."""

    gpt: GPT
    plan: Plan
    machine: Machine
    placement: Placement


def asked_as_predict(command: click.Command) -> click.Command:
    """Give a command the arguments and options by which `simgpt predict` is told of a step."""
    shared = [param for param in predict.command.params if param.name in SHARED]
    command.params = [*shared, *command.params]
    return command


def question_of(model: str, machine: str, how: dict[str, Any]) -> StepQuestion:
    """What those arguments and options ask."""
    from topologies.placement_names import parse_placement

    gpt = model_of(model, how["model_fields"])
    sequences = options.batch_of(how["batch"], how["batch_tokens"], gpt)
    built = options.machine_of(machine, how["settings"])
    plan = options.plan_on(built, how["plan"], devices=how["devices"], batch=sequences)
    placed = parse_placement(how["placement"], built, plan.grid.ranks)
    return StepQuestion(gpt, plan, built, placed)
