"""Which rank is to blame: of several that ended, and of several that are silent."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from enum import IntEnum

from executor.errors import LaunchError
from executor.launching.procfs import RUNNING, STOPPED, UNINTERRUPTIBLE, ProcessState, state_of
from executor.launching.rank_processes import RankProcess
from executor.launching.sentences import signal_name
from topologies.records import record
from workload.errors import PlanCannotRunError

LOOK_S = 0.5  # for how long silent ranks are looked at, to see which of them compute
BUSY = 0.5  # of that time on a processor is computing
_WATCHDOG = re.compile(r"watchdog|ProcessGroupNCCL", re.IGNORECASE)


class Origin(IntEnum):
    """How likely an end is the cause of the others, the likeliest first."""

    OWN = 0
    UNKNOWN = 1
    PEERS = 2
    WATCHDOG = 3


@record
class Death:
    """How a rank ended: the sentence for it, its status, and whose fault it seems to be."""

    rank: int
    status: int
    origin: Origin
    sentence: str

    def error(self) -> LaunchError | PlanCannotRunError:
        """What the parent of the ranks has to say."""
        if self.status == PlanCannotRunError.exit_code:
            return PlanCannotRunError(self.sentence)
        return LaunchError(self.sentence)


def death_of(each: RankProcess) -> Death | None:
    """How this rank ended by failing; None while it runs, and if it ended as it should."""
    code = each.process.poll()
    if each.failure is not None:
        said, status = each.failure["failed"], each.failure["status"]
        if each.failure["lost"]:
            return Death(each.rank, status, Origin.PEERS, said)
        plan = status == PlanCannotRunError.exit_code
        sentence = said if plan else f"rank {each.rank} stopped: {said}"
        return Death(each.rank, status, Origin.OWN, sentence)
    if not code:
        return None
    words = each.last_words()
    if code > 0:
        sentence = f"rank {each.rank} stopped: {words or f'exit status {code}'}"
        return Death(each.rank, code, Origin.UNKNOWN, sentence)
    name = signal_name(-code)
    # Whoever sends these does not explain on the rank's stderr: what stands there is unrelated.
    words = "" if name in ("SIGKILL", "SIGTERM") else words
    sentence = f"rank {each.rank} was killed by {name}{words and f': {words}'}"
    watchdog = name == "SIGABRT" and _WATCHDOG.search(each.stderr.read_text(errors="replace"))
    origin = Origin.WATCHDOG if watchdog else Origin.OWN
    return Death(each.rank, code, origin, f"{sentence}; all ranks were stopped")


def cause(deaths: Sequence[Death]) -> Death:
    """The death that the others followed from, of deaths in the order in which they were seen.

    A rank that raised an error of its own, or was killed, comes before those that lost it, and
    these before ranks that torch's watchdog of NCCL aborted.
    """
    return min(deaths, key=lambda death: death.origin)


def silence(silent: Sequence[RankProcess], timeout_s: float) -> LaunchError:
    """The error of ranks of which nothing was heard for so long, which names one of them.

    One that is stopped, or hangs in the kernel, is the cause; else one that computes while another
    waits for it; else the one that was silent first. A step that is merely long is not called a
    hang: a rank computes if it is on a processor, or ready to be.
    """
    before = [state_of(each.process.pid) for each in silent]
    time.sleep(LOOK_S)
    states = [state_of(each.process.pid) for each in silent]
    busy = [_busy(first, then) for first, then in zip(before, states, strict=True)]
    seen = zip(silent, states, busy, strict=True)
    each, state, computes = min(seen, key=lambda entry: _innocence(entry, all(busy)))
    since = "its start" if each.step is None else f"step {each.step}"
    return LaunchError(
        f"no progress within {timeout_s:.0f} s (--timeout): rank {each.rank} has said nothing "
        f"since {since} and {_doing(state, computes)}; all ranks were stopped"
    )


def _busy(before: ProcessState, now: ProcessState) -> bool:
    used_s = now.processor_s - before.processor_s
    return used_s >= BUSY * LOOK_S or before.state == now.state == RUNNING


def _innocence(
    entry: tuple[RankProcess, ProcessState, bool], all_busy: bool
) -> tuple[bool, bool, bool, float]:
    each, state, computes = entry
    culprit = computes and not all_busy
    return state.state != STOPPED, state.state != UNINTERRUPTIBLE, not culprit, each.heard_s


def _doing(state: ProcessState, computes: bool) -> str:
    if state.state == STOPPED:
        return "is stopped (SIGSTOP, or a terminal's Ctrl-Z)"
    if state.state == UNINTERRUPTIBLE:
        return "waits for a disk or a driver"
    if computes:
        return "is computing, or ready to; a longer --timeout may do"
    return "waits without computing" if state.state else "has not ended"
