"""The sections of a report, each from what there is to show; None where there is nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simulator.answer_words import EVENLY
from simulator.attribution.pipeline_slots import pipeline_slots
from validation.overlay import PublishedStep
from validation.report.answers import Answers, Pair
from validation.report.facts import MOST_ROWS, table_of
from validation.report.figures import link_figures
from validation.report.figures import scaling_figures as figures
from validation.report.figures import step_figures as scene_figures
from validation.report.figures.bars import MOST_BARS, breakdown
from validation.report.figures.drawn_step import MOST_RANKS, Scene
from validation.report.figures.efficiency import efficiency, reach_of
from validation.report.figures.lines import OTHERS, ladders_of, scaling_lines, where
from validation.report.figures.pipeline_chart import pipeline_chart
from validation.report.figures.scaling_figures import seconds
from validation.report.figures.timeline_data import key_of, timeline_data
from validation.report.findings import MEASURES, Ladder
from validation.report.page import Drawing, PageTable, Player, Section
from validation.report.ranking import USUAL, chosen, is_climbed, ranked
from validation.report.read_prediction import Answer, words_of
from validation.report.words import gib, percent, several
from validation.weak_scaling import Rung

MOST_FAILURES = 30
PLANS = 10
SAME = 1e-6
LEAST_POINTS = 3  # of a scatter
STILL = "The whole step, and some ops close up."
WHISKERS = " Whiskers: 80 % range."
PIPELINE = "The passes of each stage, one box for each micro-batch and chunk."
SCATTER = "The step against the peak memory per device; points that do not fit are hollow."
MEMORY = "What one rank holds, by part, and what its device has."
LINKS = "A node with its links and NICs, and how busy every sort of link is."
NOMINAL = (
    "Link utilisation if every collective were a ring over the fewest links "
    "(topologies/collectives/link_loads.py)."
)


def predictions(answers: Answers, about: Answer | None, prefix: str = "") -> Section | None:
    """All predictions in a table, and bars of where their steps go; names of figures start with
    the prefix."""
    found = ranked(answers)
    if not found:
        return None
    bars = chosen(found, answers, about, MOST_BARS)
    rows = chosen(found, answers, about, MOST_ROWS)
    texts = ["What one step consists of, as the compute stream of a rank sees it."]
    texts += _basis(bars, about)
    if any(answer.is_balanced for answer in found):
        texts.append(f"Taken for granted: {EVENLY}.")
    texts += _order(answers, found) if len(found) > 1 else []
    if len(found) > len(bars):
        texts.append(f"{len(bars):,} of {len(found):,} predictions shown.")
    if len(found) > len(rows):
        texts.append(f"Of {len(found):,} predictions {len(rows):,} are listed.")
    explained = any(answer.why for answer in found)
    later = answers.findings if explained else answers.findings[1:]
    texts += [each.proof[0] for each in later if each.proof]
    tables = [table_of(rows), *failures_of(answers.failures)]
    drawings = _drawings(bars, found, about, f"{prefix}-" if prefix else "")
    return Section("predictions", "Where the step goes", texts, drawings, tables)


def _basis(bars: Sequence[Answer], about: Answer | None) -> list[str]:
    """Where the range of the answer comes from, or else of the first bar."""
    first = about if about in bars else bars[0]
    if first is None or not (first.basis and first.range_s):
        return []
    which = "80 % range" if len(bars) == 1 else f"80 % range of the plan {first.plan}"
    return [f"{which}: {first.basis}."]


def _drawings(
    bars: Sequence[Answer], found: Sequence[Answer], about: Answer | None, prefix: str
) -> list[Drawing]:
    """The bars, and step time against memory where there are points enough."""
    bold = "; the answer is in bold" if len(bars) > 1 and about else ""
    ranged = any(answer.range_s for answer in bars)
    words = f"Where the time goes{bold}.{WHISKERS if ranged else ''}"
    drawings = [Drawing(f"{prefix}breakdown", breakdown(bars, found, about), words)]
    if len(found) >= LEAST_POINTS:
        figure = figures.scatter(found, about)
        drawings.append(Drawing(f"{prefix}scatter", figure, SCATTER, 700, still=True))
    return drawings


def _order(answers: Answers, found: Sequence[Answer]) -> list[str]:
    """By what predictions are ordered, in words."""
    last = "" if all(answer.fits for answer in found) else " Plans that do not fit come last."
    findings = answers.findings
    climbed = [is_climbed(finding) for finding in findings]
    if findings and all(climbed):
        return [f"Rungs are in the order of their study.{last}"]
    if len(findings) > 1:
        rungs = ", rungs in the order of their study" if any(climbed) else ""
        return [f"Of each search and sweep the best come first{rungs}.{last}"]
    measure = findings[0].measure if findings else USUAL
    return [f"Best first: {MEASURES[measure]}.{last}"]


def failures_of(failures: Sequence[tuple[str, str]]) -> list[PageTable]:
    """The points of sweeps that have no answer, each with the reason."""
    if not failures:
        return []
    caption = f"{several(len(failures), 'point')} of the sweep without an answer"
    if len(failures) > MOST_FAILURES:
        caption += f", the first {MOST_FAILURES} of them here"
    return [PageTable(("point", "reason"), failures[:MOST_FAILURES], left=2, caption=caption)]


def measured(pairs: Sequence[Pair]) -> Section | None:
    """Predicted beside measured."""
    if not pairs:
        return None
    rows = [
        (p.name, p.plan, p.origin, seconds(p.measured_s),
         "-" if p.predicted_s is None else seconds(p.predicted_s),
         "-" if p.error is None else percent(p.error, sign=True))
        for p in pairs[:MOST_ROWS]
    ]  # fmt: skip
    columns = ("what", "plan", "from", "measured", "predicted", "error of the step")
    errors = [abs(pair.error) for pair in pairs if pair.error is not None]
    texts, drawings = [], []
    if errors:
        mean = percent(sum(errors) / len(errors))
        texts = [f"Mean absolute error {mean} over {several(len(errors), 'step')}."]
        drawings = [Drawing("measured", figures.measured(pairs), "Each point is a step.", 520)]
    table = PageTable(columns, rows, left=3)
    return Section("measured", "Predicted and measured", texts, drawings, [table])


def scaling(answers: Answers) -> Section | None:
    """Throughput over the number of devices, where there are several, and efficiency where a
    scaling study says what it is."""
    ladders = ladders_of(answers)
    studied = {name: ladder for name, ladder in ladders.items() if ladder.kind}
    drawings = []
    if reach_of(list(studied.values())) is not None:
        words = "Efficiency of each rung; below the dashed line more than a fifth is lost."
        drawings.append(Drawing("efficiency", efficiency(studied), words + _more(studied), 620))
    lines = scaling_lines(ladders)
    if lines:
        drawings.append(Drawing("scaling", figures.scaling(lines), _lines_of(ladders)))
    if not drawings:
        return None
    tables = _published(figures.published_points(lines))
    return Section("scaling", "Scaling", (), drawings, tables)


def _lines_of(ladders: Mapping[str, Ladder]) -> str:
    """What the lines of the scaling figure are."""
    kinds = {bool(ladder.kind) for ladder in ladders.values()}
    places = {where(ladder) for ladder in ladders.values()}
    place = f"{places.pop()}: " if len(places) == 1 and len(ladders) > 1 else ""
    fastest = "the fastest plan that fits, at each number of devices"
    rungs = "the rungs of scaling studies that fit"
    words = rungs if kinds == {True} else fastest
    words = f"{rungs}, and of {OTHERS} {fastest}" if len(kinds) > 1 else words
    return f"{place}{words}.{_more(ladders)}" if place else f"{words.capitalize()}.{_more(ladders)}"


def _more(lines: Mapping[str, Ladder]) -> str:
    most = figures.MOST_LINES
    return f" The first {most} of {len(lines):,} lines are drawn." if len(lines) > most else ""


def _published(points: Sequence[tuple[Answer, PublishedStep]]) -> list[PageTable]:
    rows = [
        (answer.model, f"{answer.devices:,} of {answer.machine}", answer.plan, published.source,
         seconds(answer.step_s), seconds(published.step_s),
         percent(published.error_of(answer.step_s), sign=True),
         percent(answer.hfu), percent(published.hfu))
        for answer, published in points
    ]  # fmt: skip
    columns = ("model", "devices", "plan", "published by", "step", "published step", "error",
               "HFU", "published HFU")  # fmt: skip
    return [PageTable(columns, rows, left=4)] if rows else []


def weak_scaling(ladders: Mapping[str, Sequence[Rung]]) -> Section | None:
    """AxoNN's ladder on each machine."""
    if not ladders:
        return None
    drawings = [
        Drawing(f"weak-scaling-{machine}", figures.weak_scaling(machine, rungs),
                f"Share of the peak, recomputation counted, on {machine}.", 560)
        for machine, rungs in ladders.items()
    ]  # fmt: skip
    rows = [
        (machine, f"{rung.prediction.devices:,}", rung.prediction.gpt.name,
         str(rung.prediction.plan), seconds(rung.prediction.step_s), percent(rung.prediction.hfu),
         "-" if rung.published_hfu is None else percent(rung.published_hfu))
        for machine, rungs in ladders.items()
        for rung in rungs
    ]  # fmt: skip
    columns = ("machine", "devices", "model", "plan", "step", "HFU predicted", "HFU published")
    texts = [
        "Models grow with the number of devices, at 8,192 sequences of 2,048 tokens a step (6,144 "
        "on 6,144 devices). Published: Singh et al., SC24. Their plans are not published; nothing "
        "here is fitted to these points."
    ]
    table = PageTable(columns, rows, left=4)
    return Section("weak-scaling", "Weak scaling", texts, drawings, [table])


def simulated(scene: Scene, *, named: bool = False) -> list[Section]:
    """Timeline, memory and links of one step, whose plan is told of if `named`."""
    plan, whole = scene.prediction.plan, scene.is_whole
    drawn = f"Drawn with {scene.micro_batches}, which take {seconds(scene.step_s)}."
    part = [] if whole else [drawn]
    alike = _alike(len(scene.tracks), len(scene.step.times), plan.grid.ranks)
    which = [f"{_step_of(scene.answer)}."] if named else []
    texts = [*which, *part, *_op_by_op(scene), alike]
    curve = scene_figures.memory(scene.memory, scene.step_s, scene.answer.capacity_bytes)
    still, memory, links = (
        Drawing("timeline", scene_figures.timeline(scene), STILL, still=True),
        Drawing("memory", curve, MEMORY),
        Drawing("links", link_figures.link_load(scene), LINKS, 980),
    )
    player = Player("player", [0], key_of([timeline_data(scene)]), MOST_RANKS)
    reach = PageTable(("groups over", "reach and links"), list(scene.links.items()), left=2)
    return [
        *_pipeline(scene, [*which, *part]),
        Section("timeline", "Timeline", texts, [still], player=player),
        Section("memory", "Memory over time", [*which, *part, *_peak(scene)], [memory]),
        Section("links", "Links", [*which, *part, NOMINAL], [links], [reach]),
    ]


def _pipeline(scene: Scene, texts: Sequence[str]) -> list[Section]:
    """The stages of a pipeline with their passes."""
    plan = scene.shown
    if plan.pp == 1:
        return []
    stages = pipeline_slots(scene.prediction, plan, scene.machine, scene.placement)
    chart = Drawing("pipeline", pipeline_chart(stages, scene.step_s), PIPELINE)
    return [Section("pipeline", "Pipeline", texts, [chart])]


def _peak(scene: Scene) -> list[str]:
    peak = scene.prediction.memory
    return [] if scene.is_whole else [f"The whole step's peak is {gib(peak.peak_bytes)}."]


def _step_of(answer: Answer) -> str:
    where = f"{several(answer.devices, 'device')} of {answer.machine}"
    return f"Step of {answer.model} on {where}, split {answer.plan}"


def _op_by_op(scene: Scene) -> list[str]:
    """A pipeline is predicted slot by slot, as slow as the slowest rank of each stage."""
    if not scene.is_whole or abs(scene.step_s / scene.prediction.step_s - 1) < SAME:
        return []
    slower = percent(scene.prediction.step_s / scene.step_s - 1, sign=True)
    return [
        f"Op by op, as drawn, it takes {seconds(scene.step_s)}. The answer ({slower}) is from "
        "slots of a pipeline: each takes as long as on the slowest rank of its stage, and sums of "
        "gradients slow no later one with which they share links."
    ]


def _alike(drawn: int, sorts: int, ranks: int) -> str:
    if ranks == 1:
        return "There is one rank."
    if sorts == 1:
        return f"All {ranks:,} ranks behave alike, so one is drawn."
    return f"The {ranks:,} ranks behave in {sorts:,} different ways, of which {drawn:,} are drawn."


def reasons(answer: Answer) -> Section | None:
    """The critical path, the sensitivities, and what would help."""
    why, in_words = answer.why, words_of(answer.plan)
    if not why:
        return None
    path = [
        (" ".join(filter(None, [in_words(row["axes"]), row["work"], row["links"]])),
         seconds(row["seconds"]), percent(row["share"]))
        for row in why["path"]
        if row["share"] >= 0.0005
    ]  # fmt: skip
    better, plans = (_changes(why[key]) for key in ("better_machines", "neighbouring_plans"))
    words = "Change of the step for one per cent more of a number of the machine."
    return Section(
        "why",
        "Why, and what would help",
        ["Every figure is from a simulation of the step with that one thing changed."],
        [Drawing("sensitivity", scene_figures.tornado(why["sensitivity"]), words)],
        [
            PageTable(
                (str(why["along"]), "time", "share"), path, caption=f"from {why['path_basis']}"
            ),
            PageTable(("if the hardware were 2x better", "step", "saves"), better),
            PageTable(("neighbouring plans", "step", "saves"), plans[:PLANS]),
        ],
    )


def _changes(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    return [(row["change"], seconds(row["step_s"]), percent(row["saving"])) for row in rows]
