"""The interactive timeline's data: what the page's script draws, as small as it reads easily."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from validation.report.figures.drawn_step import Scene, Track
from validation.report.figures.step_figures import looks_of, sort_of, streams_of
from validation.report.figures.style import look_of
from workload.op import Op

TO_NS = 1e9


def timeline_data(scene: Scene) -> dict[str, Any]:
    """Ranks with their streams; ops once for each stage, times as nanoseconds from rank to rank.

    An op is [name, stream, sort, kind, bytes, FLOPs, axes], where the second, third and last are
    places in the lists beside; `at` of a rank has start and duration of its ops in turn.
    """
    tracks = scene.tracks
    ops = [op for track in _of_stages(tracks) for op in track.ops]
    sorts = list(dict.fromkeys(sort_of(op) for op in ops))
    axes = list(dict.fromkeys("+".join(op.axes) for op in ops))
    stages = {str(track.stage): _stage(track, sorts, axes) for track in _of_stages(tracks)}
    return {
        "step_ns": round(scene.step_s * TO_NS),
        "sorts": [{"name": sort, "colour": look_of(sort)[0]} for sort in sorts],
        "axes": [{"name": each, "links": scene.links.get(each, "")} for each in axes],
        "stages": stages,
        "ranks": [_rank(track) for track in tracks],
    }


def key_of(data: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """What each colour of these timelines stands for; sorts that look alike share it."""
    sorts = list(dict.fromkeys(sort["name"] for each in data for sort in each["sorts"]))
    return [{"name": words, "colour": look[0]} for look, words in looks_of(sorts).items()]


def _of_stages(tracks: list[Track]) -> list[Track]:
    """One track of each stage."""
    return list({track.stage: track for track in reversed(tracks)}.values())[::-1]


def _stage(track: Track, sorts: list[str], axes: list[str]) -> dict[str, Any]:
    streams = streams_of(track)
    return {"streams": streams, "ops": [_op(op, streams, sorts, axes) for op in track.ops]}


def _op(op: Op, streams: list[str], sorts: list[str], axes: list[str]) -> list[Any]:
    place = sorts.index(sort_of(op)), axes.index("+".join(op.axes))
    return [op.name, streams.index(op.stream), place[0], op.kind, op.nbytes, op.flops, place[1]]


def _rank(track: Track) -> dict[str, Any]:
    at: list[int] = []
    for start, end in zip(track.start_s, track.end_s, strict=True):
        begin = round(start * TO_NS)
        at += [begin, round(end * TO_NS) - begin]
    return {"rank": track.rank, "stage": str(track.stage), "at": at}
