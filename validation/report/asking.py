"""What a page has others do with an answer's question: spell its command, and build its step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from simulator.stacks.job import Job
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.records import record


class AskedStep(Protocol):
    """The step that a question asks for."""

    @property
    def job(self) -> Job:
        """Its model, plan and stack."""

    @property
    def machine(self) -> Machine:
        """Its machine, with room for the plan."""

    @property
    def placement(self) -> Placement:
        """Where its ranks are placed."""


# Of the fields of a question, and of digests of the files that may be opened for it.
StepOf = Callable[[Mapping[str, Any], Mapping[str, str]], AskedStep]
CommandOf = Callable[[Mapping[str, Any]], str]  # empty where no command asks it


@record
class Asking:
    """What builds the step of a question, and what spells the command that asks it."""

    step_of: StepOf
    command_of: CommandOf
