"""Two simulated steps on one axis of time, and the numbers in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from validation.report.facts import mfu_label
from validation.report.figures.bars import name_of
from validation.report.figures.drawn_step import Scene
from validation.report.figures.scaling_figures import seconds, shorter, time_unit
from validation.report.figures.step_figures import binned, patches_of, sort_of, streams_of
from validation.report.figures.style import canvas, fitting_legend
from validation.report.read_prediction import Answer
from validation.report.words import gib, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Facts = tuple[str, str, str]


def side_by_side(scenes: Sequence[Scene], names: Sequence[str]) -> Figure:
    """What the streams of the first rank of each step do, under each other from the same begin."""
    tracks = [scene.tracks[0] for scene in scenes]
    rows = [streams_of(track) for track in tracks]
    figure, _ = canvas(9.2, 2.0 + 0.42 * sum(map(len, rows)))
    figure.clear()
    longest = max(scene.step_s for scene in scenes)
    word, unit = time_unit(longest)
    each = figure.subplots(len(scenes), 1, sharex=True, height_ratios=list(map(len, rows)))
    for axes, scene, track, streams, name in zip(each, scenes, tracks, rows, names, strict=True):
        binned(axes, track, streams, scene.step_s, unit)
        part = "" if scene.is_whole else f", {scene.micro_batches}"
        axes.set_title(f"{shorter(' '.join(name.split()), 80)}: {seconds(scene.step_s)}{part}")
        axes.set_yticks([n + 0.5 for n in range(len(streams))], streams)
        axes.set_ylim(len(streams), 0)
        axes.set_xlim(0, longest / unit)
    each[-1].set_xlabel(f"{word} after the step's begin")
    patches = patches_of(list(dict.fromkeys(sort_of(op) for track in tracks for op in track.ops)))
    names = [patch.get_label() for patch in patches]
    fitting_legend(figure, patches, names, "outside lower center")
    return figure


def differences(one: Answer, other: Answer) -> list[Facts]:
    """Both steps' numbers, and the parts of their breakdowns that are more than one per cent."""
    rows: list[Facts] = [
        ("step", seconds(one.step_s), seconds(other.step_s)),
        (mfu_label([one, other]), percent(one.mfu), percent(other.mfu)),
        ("peak memory", gib(one.peak_bytes), gib(other.peak_bytes)),
    ]
    parts = dict.fromkeys([*one.breakdown_s, *other.breakdown_s])
    for part in parts:
        if max(_share(each.breakdown_s, part, each.step_s) for each in (one, other)) >= 0.01:
            here, there = (seconds(each.breakdown_s.get(part, 0.0)) for each in (one, other))
            rows.append((name_of(part), here, there))
    return rows


def _share(parts: Mapping[str, float], part: str, step_s: float) -> float:
    return parts.get(part, 0.0) / step_s
