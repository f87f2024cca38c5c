"""Watching ranks until the first of them has the result, or one of them ends or falls silent."""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator, Sequence
from typing import Any

from executor.errors import LaunchError
from executor.launching.blame import Death, Origin, cause, death_of, silence
from executor.launching.procfs import STOPPED, state_of
from executor.launching.rank_processes import RankProcess
from executor.launching.task_specs import Report

POLL_S = 0.1
STOPPED_S = 10.0  # after which a stopped rank is given up
SETTLE_S = 2.0  # for a cause to show, once a rank has ended by what seems a consequence


def watch(ranks: Sequence[RankProcess], report: Report, timeout_s: float) -> dict[str, Any]:
    """Pass rank 0's messages to `report` until its result comes, and return that.

    Raises the error of the rank that is the cause if one fails, is stopped for `STOPPED_S`, or says
    nothing for `timeout_s`. Time for which this process itself stood still does not count.
    """
    ended: list[RankProcess] = []  # in the order in which it was noticed
    first_s = checked_s = time.monotonic()
    with selectors.DefaultSelector() as pipes:
        for each in ranks:
            pipes.register(each.answers, selectors.EVENT_READ, each)
        while True:
            for message in _messages(pipes):
                if "result" in message:
                    result: dict[str, Any] = message["result"]
                    return result
                report(message)
            now = time.monotonic()
            if now - checked_s < POLL_S:
                continue
            pause_s, checked_s = now - checked_s, now
            if pause_s > STOPPED_S:
                _excuse(ranks, pause_s)
            first_s = first_s if ended else now
            ended += [each for each in ranks if each not in ended and death_of(each)]
            _raise_for_deaths([found for each in ended if (found := death_of(each))], now - first_s)
            first = ranks[0]
            if first.answers not in pipes.get_map() and first.process.poll() == 0:
                raise LaunchError("rank 0 ended without a result; all ranks were stopped")
            _check_living([each for each in ranks if each.process.poll() is None], now, timeout_s)


def _messages(pipes: selectors.BaseSelector) -> Iterator[dict[str, Any]]:
    """What rank 0 has to report; other ranks' messages only show that they get on."""
    for key, _ in pipes.select(POLL_S):
        each: RankProcess = key.data
        messages = each.listen()
        if messages is None:
            pipes.unregister(key.fileobj)
        elif each.rank == 0:
            yield from (message for message in messages if "failed" not in message)


def _excuse(ranks: Sequence[RankProcess], pause_s: float) -> None:
    for each in ranks:
        each.heard_s += pause_s


def _raise_for_deaths(deaths: Sequence[Death], since_s: float) -> None:
    """Raise what ended the ranks, once there is nothing likelier to wait for."""
    if not deaths:
        return
    found = cause(deaths)
    if since_s >= (POLL_S if found.origin <= Origin.UNKNOWN else SETTLE_S):
        raise found.error()


def _check_living(ranks: Sequence[RankProcess], now: float, timeout_s: float) -> None:
    for each in ranks:
        stopped = state_of(each.process.pid).state == STOPPED
        each.stopped_s = each.stopped_s + POLL_S if stopped else 0.0
        if each.stopped_s > STOPPED_S:
            raise LaunchError(
                f"rank {each.rank} has been stopped for {STOPPED_S:.0f} s (SIGSTOP, or a "
                "terminal's Ctrl-Z); all ranks were stopped"
            )
    silent = [each for each in ranks if now - each.heard_s > timeout_s]
    if silent:
        raise silence(silent, timeout_s)
