"""Whether the order in which ranks issue collectives and messages can come to an end on NCCL.

An order can hang there that is fine elsewhere. What is played is a model of NCCL's blocking rules:

1. A communicator whose members have not met yet is formed at its first use: the host of each member
   stays there until all have come. A call on a formed one is only queued.
2. A communicator performs its calls in the order of issue, and each of them only when all members
   have come to it: a send ends no sooner than its receive begins.
3. A call starts once the compute stream has passed what was issued before it.
4. With `loading`, a host that launches a kernel for the first time first waits for all that its
   rank has issued: CUDA loads kernels lazily, which may synchronise the device.

Kernels always end, so nothing else of them matters. Sources: PyTorch 2.7, ProcessGroupNCCL.cpp
(`pointToPoint`, `collective`, `initNCCLComm`); NCCL user guide, "Point-to-point communication" and
"Using multiple NCCL communicators concurrently"; CUDA C++ programming guide, "Lazy loading".

Not modelled: a message small enough for NCCL to buffer ends before it is received, and kernels that
wait may leave no room for others on the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from executor.nccl.issue_order import Call, Communicator, Round

# CUDA's own variable: with EAGER it loads all kernels when it starts, and rule 4 falls away.
MODULE_LOADING, EAGER = "CUDA_MODULE_LOADING", "EAGER"
SHOWN = 4  # ranks that a sentence names

Calls = Mapping[int, Sequence[Call]]


def hang_of(calls: Calls, formed: Collection[Round] = (), *, loading: bool = False) -> str:
    """What keeps a step of all these ranks from its end, naming ranks and communicators; "" if
    nothing does. `formed` are the rounds whose communicators are formed before the step.
    """
    ranks = _Ranks(calls, formed, loading)
    while ranks.advance():
        pass
    stuck = ranks.stuck()
    more = f"; and {len(stuck) - SHOWN} more ranks" if len(stuck) > SHOWN else ""
    return "; ".join(stuck[:SHOWN]) + more


def among(ranks: Sequence[int], calls: Calls) -> Calls:
    """The calls of these ranks as if there were no others: ranks at the same place of every stage,
    say, beside which all others do the same."""

    def fewer(call: Call) -> Call:
        purpose, members = call.communicator
        return replace(call, communicator=(purpose, tuple(m for m in members if m in ranks)))

    return {rank: [fewer(call) for call in calls[rank]] for rank in ranks}


def message_rounds(calls: Calls) -> set[Round]:
    """The rounds of the groups that carry messages between stages."""
    rounds = {call.communicator[0] for own in calls.values() for call in own}
    return {purpose for purpose in rounds if any(purpose[:1])}


class _Ranks:
    """How far every rank has come: its host, its compute stream, and its calls."""

    def __init__(self, calls: Calls, formed: Collection[Round], loading: bool) -> None:
        self._calls = calls
        self._loading = loading
        every = {call.communicator for own in calls.values() for call in own}
        self._formed = {one for one in every if one[0] in formed}
        self._issued = dict.fromkeys(calls, 0)  # calls behind the host
        self._passed = dict.fromkeys(calls, 0)  # calls that the compute stream lets start
        self._done: dict[int, set[int]] = {rank: set() for rank in calls}
        self._queues: dict[Communicator, dict[int, deque[int]]] = {
            one: {rank: deque() for rank in one[1]} for one in every if one[1]
        }

    def advance(self) -> bool:
        """Let all do what they can; False if that is nothing."""
        moved = 0
        for rank in self._calls:
            while self._issue(rank):
                moved += 1
            while self._pass(rank):
                moved += 1
        for communicator, queues in self._queues.items():
            while self._perform(communicator, queues):
                moved += 1
        return moved > 0

    def _issue(self, rank: int) -> bool:
        call = self._next(rank)
        if call is None or not self._meets(call.communicator):
            return False
        number = self._issued[rank]
        if self._loading and call.loads and len(self._done[rank]) < number:
            return False
        if call.communicator[1]:
            self._queues[call.communicator][rank].append(number)
        self._issued[rank] += 1
        return True

    def _next(self, rank: int) -> Call | None:
        """What a rank's host issues next."""
        own, number = self._calls[rank], self._issued[rank]
        return own[number] if number < len(own) else None

    def _meets(self, communicator: Communicator) -> bool:
        """Whether a communicator is formed, if only now."""
        if communicator not in self._formed:
            coming = [self._next(member) for member in communicator[1]]
            if any(call is None or call.communicator != communicator for call in coming):
                return False
            self._formed.add(communicator)
        return True

    def _pass(self, rank: int) -> bool:
        number = self._passed[rank]
        if number == self._issued[rank] or self._missing(rank):
            return False
        self._passed[rank] += 1
        return True

    def _missing(self, rank: int) -> list[int]:
        """The calls that a rank's compute stream still waits for."""
        after = self._calls[rank][self._passed[rank]].after
        return [number for number in after if number not in self._done[rank]]

    def _perform(self, communicator: Communicator, queues: Mapping[int, deque[int]]) -> bool:
        if any(not queue or queue[0] >= self._passed[rank] for rank, queue in queues.items()):
            return False
        heads = {rank: queue[0] for rank, queue in queues.items()}
        if len({self._calls[rank][number].agreed for rank, number in heads.items()}) > 1:
            return False
        for rank, number in heads.items():
            queues[rank].popleft()
            self._done[rank].add(number)
        return True

    def stuck(self) -> list[str]:
        """A sentence for each rank that does not come to the end."""
        return [
            self._sentence(rank)
            for rank, own in self._calls.items()
            if self._passed[rank] < len(own)
        ]

    def _sentence(self, rank: int) -> str:
        call = self._next(rank)
        if call is not None and call.communicator not in self._formed:
            return f"rank {rank} forms {_text(call.communicator)} at {call.name}"
        if call is not None:
            return f"rank {rank} loads a kernel before {call.name}"
        waits = self._calls[rank][self._missing(rank)[0]]
        return f"rank {rank} waits for {waits.name} on {_text(waits.communicator)}"


def _text(communicator: Communicator) -> str:
    purpose, members = communicator
    return f"{' '.join(filter(None, purpose))} of ranks {', '.join(map(str, members))}"
