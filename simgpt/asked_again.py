"""The question of an answer, asked again: the step that it was about, and the command of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simgpt.question import Question
from simgpt.step import Sources, Step, step_of
from topologies.errors import SimgptError
from validation.report.asking import Asking
from validation.report.provenance import check_file

if TYPE_CHECKING:
    from simulator.stacks.stack import Stack
    from topologies.machine import Machine
    from workload.descriptions.described import Described
    from workload.gpt import GPT


class KnownFiles(Sources):
    """What the names of an answer's question stand for, with files that are, byte by byte, those
    that the answer was made with; a ReportError names any other."""

    def __init__(self, digests: Mapping[str, str]) -> None:
        super().__init__(tells=False)
        self._digests = digests

    def described(self, name: str) -> Described:
        """What describes the model of a name."""
        check_file(name, self._digests)
        return super().described(name)

    def routed(self, gpt: GPT, file: str) -> GPT:
        """The model with the histogram of a file."""
        check_file(file, self._digests)
        return super().routed(gpt, file)

    def machine(self, question: Question) -> Machine:
        """The machine with the values that are set of it."""
        check_file(question.machine, self._digests)
        return super().machine(question)

    def stack(self, name: str) -> Stack:
        """The stack of a name."""
        check_file(name, self._digests)
        return super().stack(name)


def _question(fields: Mapping[str, Any]) -> Question:
    """The question of an answer's fields, of which those that are not given are empty."""
    return Question.of(**{name: each for name, each in fields.items() if each != ""})


def step_again(fields: Mapping[str, Any], files: Mapping[str, str]) -> Step:
    """The step of a question's fields, of which digests of its files are known."""
    return step_of(_question(fields), KnownFiles(files))


def command_again(fields: Mapping[str, Any]) -> str:
    """The command of a question's fields, ready for a shell; an empty text where a file has fields
    that no command asks."""
    try:
        return _question(fields).command
    except SimgptError:
        return ""


ASKING = Asking(step_again, command_again)
