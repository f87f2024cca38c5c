"""Exports of a model that tests make, which no MODEL of a command line need describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simgpt.frameworks import exporting
from simgpt.frameworks.exported import Exported
from simgpt.question import Question
from workload.gpt import GPT


@dataclass(frozen=True)
class Asked:
    """A model, a plan, devices and a batch."""

    gpt: GPT
    plan: str | Mapping[str, Any]
    devices: int | None
    batch: int | None


def exported(asked: Asked, framework: str, stack: str | None = None) -> Exported:
    """The settings by which a framework runs it, with what a stack has where the plan says
    nothing."""
    question = Question.of(plan=asked.plan, devices=asked.devices, batch=asked.batch, stack=stack)
    return exporting.exported(question, framework, asked.gpt)
