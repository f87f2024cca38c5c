"""Programs that a session keeps: whoever asks for one again is given the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from topologies.session import current_session
from workload.gpt import GPT
from workload.lowering.in_turns import with_pairs
from workload.lowering.lower import lower_slots
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.pipeline.schedule import Slot
from workload.plan import Plan
from workload.program import Program
from workload.stages import stage_slots

MOST_OPS = 100_000  # of a prediction, and of what is tried when it does not fit: some 150 MB


def kept_program(
    gpt: GPT, plan: Plan, stage: int = 0, *, behaviour: StackBehaviour = PLAIN_BEHAVIOUR
) -> Program:
    """The program that `lower` writes, in plain matmul forms."""

    def lowered() -> Program:
        return with_pairs(
            lower_slots(gpt, plan, stage, stage_slots(plan, stage), behaviour=behaviour)
        )

    key = gpt, plan, stage, behaviour
    return current_session().the(KeptPrograms).kept(key, lowered)


def kept_slots(
    gpt: GPT,
    plan: Plan,
    stage: int,
    order: Sequence[Slot],
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
) -> Program:
    """The program that `lower_slots` writes, in plain matmul forms."""

    def lowered() -> Program:
        return lower_slots(gpt, plan, stage, order, behaviour=behaviour)

    key = gpt, plan, stage, tuple(order), behaviour
    return current_session().the(KeptPrograms).kept(key, lowered)


class KeptPrograms:
    """The last programs, the least recently used of which are dropped first."""

    def __init__(self) -> None:
        self._all: dict[Hashable, Program] = {}
        self._ops = 0

    def kept(self, key: Hashable, lowered: Callable[[], Program]) -> Program:
        """The program of a key, lowered where it is not there."""
        program = self._all.pop(key, None)
        if program is None:
            program = lowered()
            self._ops += len(program.ops)
        self._all[key] = program
        while self._ops > MOST_OPS and len(self._all) > 1:
            self._ops -= len(self._all.pop(next(iter(self._all))).ops)
        return program
