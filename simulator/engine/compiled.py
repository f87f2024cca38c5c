"""The compiled engine: the recurrence of `streams.py` and `contention.py` in `core.c`.

Tasks become arrays. What depends on a program's structure alone is kept with its stream graph, and
the rendezvous of its ops with the rank classes. Durations under contention are asked for by a
callback, once for each combination of collectives in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.engine.columns import Sorts
from simulator.engine.core import core
from simulator.engine.stream_graph import StreamGraph
from simulator.engine.streams import RankTask
from simulator.ranks.classes import Axes, RankClasses
from workload.op import NONE, Op
from workload.sizes.arrays import Flags, Indices, Ticks


def run(
    network: RankClasses, tasks: Sequence[RankTask], durations: Sequence[Ticks], *, overlaps: bool
) -> list[tuple[Ticks, Ticks]]:
    """As `simulator.engine.engines.run`."""
    meetings, signatures = _Meetings(network, overlaps=overlaps), _Signatures()
    rows, results = [], []
    for task, own in zip(tasks, durations, strict=True):
        times = tuple(np.full(len(own), NONE, dtype=np.int64) for _ in range(2))
        about = own, task.floors, meetings.of(task), signatures.of(task), *times
        rows.append((task.number, *task.graph.awaited, *about, *task.graph.stream_ops))
        results.append((times[0], times[1]))
    axes = sorted({op.traffic for op in signatures.ops})
    number = {each: place for place, each in enumerate(axes)}

    def lasts(signature: int, in_flight: tuple[int, ...]) -> list[int]:
        return network.ticks(signatures.ops[signature], tuple(axes[place] for place in in_flight))

    members = np.array(meetings.members, dtype=np.int64)
    axes_of = np.array([number[op.traffic] for op in signatures.ops], dtype=np.int64)
    core.run(len(network.ranks), rows, meetings.table, members, axes_of, lasts)
    return results


class _Meetings:
    """The rendezvous of all tasks, numbered. `table` has for each how many classes meet, whether it
    may contend, and where its classes stand in `members`, and how many they are."""

    def __init__(self, network: RankClasses, *, overlaps: bool) -> None:
        self._network, self._overlaps = network, overlaps
        self.members: list[int] = []
        self._parts: list[Indices] = []
        self._count = 0
        self._first: dict[StreamGraph, Indices] = {}
        self._across: dict[tuple[object, ...], int] = {}
        self._rows: dict[Axes, Indices] = {}

    @property
    def table(self) -> Indices:
        """See above, (rendezvous, 4)."""
        return np.concatenate([np.zeros((0, 4), dtype=np.int64), *self._parts])

    def of(self, task: RankTask) -> Indices:
        """The rendezvous of each of a task's ops, NONE where it meets no other class."""
        graph, network = task.graph, self._network
        found = np.full(len(graph.places), NONE, dtype=np.int64)
        own = [network.class_groups[group].of_class[task.number] for group in graph.groups]
        alone = [
            self._rows_of(group)[at, 0] == 1 for group, at in zip(graph.groups, own, strict=True)
        ]
        places, group = graph.meetings
        if len(places):
            if graph not in self._first:
                self._first[graph] = self._added(graph)
            left_out = np.array(alone)[group] & ~self._contends(graph)
            numbers = self._first[graph] + np.array(own, dtype=np.int64)[group]
            found[places] = np.where(left_out, NONE, numbers)
        for index in graph.meetings_across:
            op = task.op(index)
            at = network.class_groups[op.traffic].of_class[task.number]
            row = self._rows_of(op.traffic)[at]
            contends = self._overlaps and op.is_collective
            if row[0] > 1 or contends:
                key = graph.meeting(index), op.traffic, at
                if key not in self._across:
                    self._across[key] = self._append(row[None], np.array([contends]))
                found[index] = self._across[key]
        return found

    def _added(self, graph: StreamGraph) -> Indices:
        """The rendezvous of all groups of a graph's ops; the first one of each op."""
        _, group = graph.meetings
        rows = [self._rows_of(each) for each in graph.groups]
        counts = np.array([len(each) for each in rows], dtype=np.int64)[group]
        every = np.concatenate([rows[number] for number in group.tolist()])
        first = self._append(every, np.repeat(self._contends(graph), counts))
        return np.asarray(first + np.cumsum(counts) - counts, dtype=np.int64)

    def _append(self, rows: Indices, contends: Flags) -> int:
        part = rows.copy()
        part[:, 1] = contends
        self._parts.append(part)
        self._count += len(part)
        return self._count - len(part)

    def _contends(self, graph: StreamGraph) -> Flags:
        places, _ = graph.meetings
        return np.asarray(graph.collectives[places] & self._overlaps)

    def _rows_of(self, group: Axes) -> Indices:
        """The rows of all groups over some axes, as if they did not contend."""
        if group not in self._rows:
            known = self._network.class_groups[group]
            rows = []
            for size, members in zip(known.sizes, known.members, strict=True):
                rows.append((size, 0, len(self.members), len(members)))
                self.members += members
            self._rows[group] = np.array(rows, dtype=np.int64)
        return self._rows[group]


class _Signatures:
    """Collectives that take equally long under equal conditions, numbered, each with one op."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._known: dict[tuple[object, ...], int] = {}
        self._of_sorts: dict[Sorts, Indices] = {}
        self._last: tuple[StreamGraph | None, Indices] = None, np.zeros(0, dtype=np.int64)

    def of(self, task: RankTask) -> Indices:
        """The signature of each of a task's collectives, NONE for other ops."""
        sorts, graph = task.graph.columns.sorts, task.graph
        if sorts not in self._of_sorts:
            ops, own = sorts.collectives
            numbers = np.array([*map(self._number, ops), NONE], dtype=np.int64)
            self._of_sorts[sorts] = numbers[own]  # the last one for NONE
        if graph is not self._last[0]:
            self._last = graph, self._of_sorts[sorts][graph.sort]
        return self._last[1]

    def _number(self, op: Op) -> int:
        key = op.transport, op.axes, op.nbytes
        if key not in self._known:
            self._known[key] = len(self.ops)
            self.ops.append(op)
        return self._known[key]
