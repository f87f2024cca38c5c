"""What a prediction takes for granted of the software, and what the step would be otherwise.

A stack's file names under `[otherwise]` the stacks that differ from it in one thing that a user
may not know of a job: CUDA graphs, the dispatcher of experts, the release. Routing is balanced
where no histogram says otherwise; steps with the routing of real training took `REAL_ROUTING`
times as long in published comparisons.

Source: PrimeIntellect-ai/prime-rl (+40 % over balanced routing) and InternLM/xtuner (+43 to +87 %,
8 H200, DeepEP), read second-hand; pytorch/torchtitan, issue 3434: twice (982 over 478 ms).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from simulator.answer_words import assumes_balance
from simulator.predict import Prediction
from simulator.stacks.stack import Stack
from simulator.stacks.stack_files import load_stack
from topologies.errors import SimgptError
from topologies.records import record
from workload.exchange.table import USUAL

REAL_ROUTING = (1.40, 1.87)
HOST = "host"  # in a breakdown, waiting for what the host issues
LEAST = 0.005  # of a step: what changes less is not said


@record
class Otherwise:
    """What may be otherwise than assumed, in words, and the step then: from `low_s` to `high_s`,
    which are equal where it is predicted."""

    words: str
    low_s: float
    high_s: float


@record
class Granted:
    """What an answer takes for granted, and the steps otherwise; None where these were not asked
    for."""

    assumed: tuple[str, ...]
    otherwise: tuple[Otherwise, ...] | None

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON: what is assumed, which takes no further prediction."""
        return {"assumed": list(self.assumed)}


def granted(prediction: Prediction, under: Callable[[str], Prediction] | None) -> Granted:
    """What a prediction takes for granted; and with `under`, the same question's prediction under
    the stack of a name, what the step would be otherwise."""
    others = None if under is None else tuple(_otherwise(prediction, under))
    return Granted(tuple(_assumed(prediction)), others)


def _assumed(prediction: Prediction) -> list[str]:
    """What is assumed of the software and of the routing, where that may matter."""
    stack = prediction.stack
    others = [load_stack(name) for name in stack.otherwise.values()]
    found = []
    if any(_graphs(other) != _graphs(stack) for other in others):
        scopes = ", ".join(_graphs(stack))
        found.append(f"CUDA graphs of {scopes}" if scopes else "no CUDA graphs")
    own = stack.usual_exchange
    usual = prediction.plan.experts.dispatcher == USUAL
    if usual and _exchanges(prediction) and any(each.usual_exchange != own for each in others):
        found.append("tokens sent once to each node" if own.once else "tokens sent by all-to-all")
    if assumes_balance(prediction.gpt):
        found.append("balanced routing")
    return found


def _otherwise(prediction: Prediction, under: Callable[[str], Prediction]) -> list[Otherwise]:
    """The steps that would differ; a stack that cannot run the plan is left out."""
    found = [*_of_stacks(prediction, under)]
    if _exchanges(prediction) and assumes_balance(prediction.gpt):
        low, high = (prediction.step_s * factor for factor in REAL_ROUTING)
        found.append(Otherwise("with the routing of real training, as published", low, high))
    return found


def _of_stacks(prediction: Prediction, under: Callable[[str], Prediction]) -> Iterator[Otherwise]:
    for words, name in prediction.stack.otherwise.items():
        if not _matters(prediction, load_stack(name)):
            continue
        try:
            step_s = under(name).step_s
        except SimgptError:
            continue
        if abs(step_s / prediction.step_s - 1) >= LEAST:
            yield Otherwise(words, step_s, step_s)


def _matters(prediction: Prediction, other: Stack) -> bool:
    """Whether what another stack has differently can change the step: graphs do where the host is
    waited for, dispatchers where tokens are exchanged."""
    mine = prediction.stack
    if other.usual_exchange != mine.usual_exchange:
        return _exchanges(prediction)
    if _graphs(other) != _graphs(mine):
        waits = prediction.breakdown_s.get(HOST, 0.0) >= LEAST * prediction.step_s
        return waits or bool(_graphs(mine))
    return True


def _exchanges(prediction: Prediction) -> bool:
    return bool(prediction.gpt.moe.experts) and prediction.plan.ep > 1


def _graphs(stack: Stack) -> tuple[str, ...]:
    return tuple(stack.own_kernels.get("graphs", ()))
