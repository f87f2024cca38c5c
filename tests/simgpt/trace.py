"""A checker of Chrome traces, as Perfetto reads them.

Perfetto takes microseconds to the nanosecond, draws slices of one track in each other, and can only
do so if they nest; a flow that does not begin and end in a slice is dropped.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

PHASES = {"M": "metadata", "X": "slice", "s": "flow begin", "f": "flow end"}
NAMES = ("process_name", "thread_name")
Event = Mapping[str, Any]
Track = tuple[int, int]


def problems(trace: Mapping[str, Any]) -> list[str]:
    """What is wrong with a trace, in words; an empty list if nothing is."""
    events = trace.get("traceEvents")
    if not isinstance(events, list):
        return ["there is no list of traceEvents"]
    found = [] if trace.get("displayTimeUnit") in ("ms", "ns") else ["displayTimeUnit is not one"]
    unlike = [f"event {n}: {w}" for n, event in enumerate(events) for w in _shape(event)]
    if unlike:
        return found + unlike
    slices = [event for event in events if event["ph"] == "X"]
    return [
        *found,
        *_names(events),
        *_nesting(slices),
        *_flows([event for event in events if event["ph"] in "sf"], slices),
    ]


def _ns(microseconds: float) -> int:
    """As Perfetto reads them from decimal text; a thousandth of one is a float's noise."""
    return math.floor(microseconds * 1e3 + 1e-3)


def _shape(event: Any) -> list[str]:
    if not isinstance(event, dict) or event.get("ph") not in PHASES:
        return [f"{event!r:.60} is of no known phase"]
    wrong = []
    if not (isinstance(event.get("name"), str) and event["name"]):
        wrong.append("has no name")
    if not _is_whole(event.get("pid")):
        wrong.append("has no process")
    if event["ph"] == "M":
        if event.get("name") not in NAMES:
            wrong.append(f"{event.get('name')} is no known metadata")
        if not isinstance(event.get("args", {}).get("name"), str):
            wrong.append("metadata without a name")
        return wrong
    if not _is_whole(event.get("tid")):
        wrong.append("has no track")
    for key in ("ts", "dur") if event["ph"] == "X" else ("ts",):
        value = event.get(key)
        number = value if isinstance(value, int | float) else math.nan
        if isinstance(value, bool) or not (math.isfinite(number) and number >= 0):
            wrong.append(f"{key} = {value!r} is no time")
    if event["ph"] in "sf" and "id" not in event:
        wrong.append("is a flow without an id")
    return wrong


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _track(event: Event) -> Track:
    return event["pid"], event["tid"]


def _names(events: Sequence[Event]) -> list[str]:
    """Every track that has slices is named, once, and so is its process."""
    named = [
        (e["name"], e["pid"], e.get("tid") if e["name"] == "thread_name" else None)
        for e in events
        if e["ph"] == "M"
    ]
    wrong = [f"{name} stands twice" for name in dict.fromkeys(named) if named.count(name) > 1]
    for pid, tid in dict.fromkeys(_track(e) for e in events if e["ph"] == "X"):
        if ("process_name", pid, None) not in named:
            wrong.append(f"process {pid} has no name")
        if ("thread_name", pid, tid) not in named:
            wrong.append(f"track {tid} of process {pid} has no name")
    return wrong


def _nesting(slices: Sequence[Event]) -> list[str]:
    wrong = []
    tracks: dict[Track, list[tuple[int, int, str]]] = defaultdict(list)
    for event in slices:
        begin = _ns(event["ts"])
        tracks[_track(event)].append((begin, -(begin + _ns(event["dur"])), event["name"]))
    for track, spans in tracks.items():
        around: list[int] = []
        for begin, minus_end, name in sorted(spans):
            while around and around[-1] <= begin:
                around.pop()
            if around and -minus_end > around[-1]:
                wrong.append(f"{name} on {track} ends after the slice around it")
            around.append(-minus_end)
    return wrong


def _flows(flows: Sequence[Event], slices: Sequence[Event]) -> list[str]:
    """Each begins in a slice once and ends in a slice, no earlier."""
    spans: dict[Track, list[tuple[int, int]]] = defaultdict(list)
    for event in slices:
        spans[_track(event)].append((_ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"])))
    wrong, ends = [], defaultdict(list)
    for event in flows:
        ends[event["id"]].append(event)
        at = _ns(event["ts"])
        if not any(begin <= at <= end for begin, end in spans[_track(event)]):
            wrong.append(f"flow {event['name']} does not touch a slice on {_track(event)}")
        if event["ph"] == "f" and event.get("bp") != "e":
            wrong.append(f"flow {event['name']} ends at the next slice, not at the one around it")
    for key, found in ends.items():
        if [event["ph"] for event in found] != ["s", "f"]:
            wrong.append(f"flow {key} is not one begin and one end")
        elif found[0]["ts"] > found[1]["ts"]:
            wrong.append(f"flow {key} ends before it begins")
        elif len({(event["name"], event.get("cat")) for event in found}) > 1:
            wrong.append(f"flow {key} has two names")
    return wrong
