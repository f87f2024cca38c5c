"""Whether the stages of a plan come to the end of a step, or wait for each other.

All ranks of a stage issue the same in the same order, so the ranks at one place of every stage
stand for all (rank classes). Their orders of collectives and messages are played together, as NCCL
would (`executor.nccl.rendezvous`): a send ends when its receive has begun, a collective when all
have come, until every stage is at its end or none can go on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from executor.nccl.issue_order import Call, calls_of, issue_order
from executor.nccl.rendezvous import among, hang_of, message_rounds
from topologies.records import record
from workload.gpt import GPT
from workload.lowering import lower
from workload.plan import Plan


@record
class PlayedStages:
    """How many calls the stages issue in a step together, and what keeps them from its end, naming
    ranks and the ops that wait for each other; "" if nothing does. Some come to the end only where
    CUDA loads all kernels before the first step (`loads_eagerly`)."""

    stages: int
    calls: int
    hang: str
    loads_eagerly: bool
    seconds: float


def play_stages(gpt: GPT, plan: Plan) -> PlayedStages:
    """Play what all stages of a plan issue in a step, one rank of each."""
    started = time.perf_counter()
    chosen = [plan.grid.rank({"pp": stage}) for stage in range(plan.pp)]
    every = {rank: _calls(gpt, plan, stage, rank) for stage, rank in enumerate(chosen)}
    calls = {rank: meeting(own) for rank, own in among(chosen, every).items()}
    formed = message_rounds(calls)
    hang = hang_of(calls, formed, loading=True)
    loads_eagerly = bool(hang) and not hang_of(calls, formed)
    return PlayedStages(
        stages=plan.pp,
        calls=sum(len(own) - 1 for own in every.values()),  # the last one is the step's end
        hang="" if loads_eagerly else hang,
        loads_eagerly=loads_eagerly,
        seconds=time.perf_counter() - started,
    )


def meeting(own: Sequence[Call]) -> list[Call]:
    """A rank's calls without those that no other of the played ranks is in.

    Exact: such a call is over as soon as the compute stream has passed it, so whoever waits for it
    waits for what the stream had waited for before; that, and a kernel that is loaded before it,
    are the next call's here.
    """
    numbers: dict[int, int] = {}  # of the calls that are kept
    kept: list[Call] = []
    after: list[int] = []
    loads = False
    for number, call in enumerate(own):
        after += [numbers[awaited] for awaited in call.after if awaited in numbers]
        loads |= call.loads
        if len(call.communicator[1]) == 1:
            continue
        numbers[number] = len(kept)
        kept.append(replace(call, after=tuple(after), loads=loads))
        after, loads = [], False
    return kept


def _calls(gpt: GPT, plan: Plan, stage: int, rank: int) -> list[Call]:
    program = lower(gpt, plan, stage)
    return calls_of(program, rank, issue_order(program, late=True))
