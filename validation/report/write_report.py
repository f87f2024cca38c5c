"""A whole report from answers: which one it is about, what is drawn of it, and how it was made."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from topologies.errors import SimgptError
from topologies.files.writing import write_whole
from topologies.records import record
from validation.report import sections
from validation.report.answers import Answers
from validation.report.asking import Asking
from validation.report.facts import facts_of
from validation.report.figures.drawn_step import Scene, staged
from validation.report.figures.scaling_figures import seconds
from validation.report.figures.style import drawing, write_figure
from validation.report.figures.timeline_data import timeline_data
from validation.report.headline import headline
from validation.report.mfu_section import losses
from validation.report.noise_section import variability
from validation.report.page import Page, Section, html
from validation.report.questions import question_sections, questions_of, runner_up, side_by_side
from validation.report.read_prediction import Answer
from validation.report.whole_run.section import calendar_sections
from validation.report.words import several
from validation.weak_scaling import Rung

PACKAGES = ("simgpt", "numpy", "simpy", "networkx", "matplotlib", "jinja2")
MOST_COMMANDS = 20
Progress = Callable[[str], None]


@record(slots=False)
class Written:
    """The files that were written, and which drawings are left out of them and why, if any are."""

    paths: Sequence[Path]
    missing: str


def write_report(
    answers: Answers,
    ladders: Mapping[str, Sequence[Rung]],
    *,
    asking: Asking,
    page: Path | None,
    folder: Path | None,
    progress: Progress,
) -> Written:
    """Draw everything once, into a page, into a folder of figures, or into both."""
    with drawing():
        made, missing = _page(answers, ladders, asking, progress)
        written = []
        if page is not None:
            progress("writing the page")
            write_whole(page, html(made, _version("simgpt")))
            written.append(page)
        if folder is not None:
            for section in made.sections:
                for each in section.drawings:
                    progress(f"drawing {each.name}")
                    written += write_figure(each.figure, folder, each.name)
    return Written(written, missing)


def _page(
    answers: Answers, ladders: Mapping[str, Sequence[Rung]], asking: Asking, progress: Progress
) -> tuple[Page, str]:
    """The page, and what is missing from it and why."""
    head = headline(answers, ladders)
    answer = head.about
    scene, missing = _scene(answer, asking, progress)
    groups = questions_of(answers)
    rival, _ = _scene(runner_up(answer, groups) if scene else None, asking, progress)
    scenes = [each for each in (scene, rival) if each]
    progress("drawing")
    apart = question_sections(answers, groups) if len(groups) > 1 else []
    found = [
        *apart,
        losses(answer.why, scene) if answer else None,
        sections.reasons(answer) if answer else None,
        *calendar_sections(answers.calendars),
        variability([answer, *answers.predictions]),
        sections.measured(answers.pairs),
        sections.scaling(answers),
        sections.weak_scaling(ladders),
        None if apart else sections.predictions(answers, answer),
        side_by_side(scenes) if rival else None,
        *(sections.simulated(scene, named=len(answers.predictions) > 1) if scene else []),
        Section("not-drawn", "Not drawn", [missing]) if missing else None,
        *_made_by(answers, ladders, asking),
    ]
    step = answer is not None and head.answer != seconds(answer.step_s)
    page = Page(
        title=head.title,
        study=head.study,
        question=head.question,
        answer=head.answer,
        sentence=head.sentence,
        facts=facts_of(answer, step=step) if answer else (),
        sections=[section for section in found if section is not None],
        steps=[timeline_data(each) for each in scenes],
    )
    page = _overview(page, apart) if apart else page
    return page, missing


def _overview(page: Page, apart: Sequence[Section]) -> Page:
    """The page of several questions: its head has all of them with their answers."""
    questions = [section for section in apart if section.answer]
    title = f"Answers to {len(questions)} questions"
    contents = [(each.anchor, each.title, each.answer) for each in questions]
    return replace(page, study="", question=title, answer="", sentence="", facts=(),
                   contents=contents)  # fmt: skip


def _scene(answer: Answer | None, asking: Asking, progress: Progress) -> tuple[Scene | None, str]:
    """The step simulated again, or why it could not be."""
    if answer is None:
        return None, ""
    progress(f"simulating {answer.model} on {several(answer.devices, 'device')} again")
    try:
        return staged(answer, asking.step_of), ""
    except SimgptError as error:
        return None, f"Timeline, memory over time and links are not drawn: {error}."


def _made_by(
    answers: Answers, ladders: Mapping[str, Sequence[Rung]], asking: Asking
) -> list[Section]:
    """The commands that were run, those that give each prediction again, and versions."""
    run = list(dict.fromkeys(answers.commands))
    again = [asking.command_of(answer.asked) for answer in answers.predictions]
    again = [
        each for each in dict.fromkeys(filter(str.isprintable, again)) if each not in ("", *run)
    ]
    lines = again[:MOST_COMMANDS]
    if ladders:
        lines.append("simgpt report --weak-scaling -o weak-scaling.html")
    texts = ["Each of these gives one prediction again."] if again else []
    if len(again) > MOST_COMMANDS:
        texts = [f"Each of these gives one prediction again; the first {MOST_COMMANDS} of "
                 f"{len(again):,}."]  # fmt: skip
    files = dict.fromkeys(pair.origin for pair in answers.pairs)
    if files:
        texts.append(f"Measured steps are from {', '.join(files)}.")
    texts.append(", ".join(f"{name} {_version(name)}" for name in PACKAGES)
                 + f", Python {platform.python_version()}.")  # fmt: skip
    asked = Section("asked", "Commands that were run", lines=run)
    return [
        *([asked] if run else []),
        Section("made-by", "Commands and versions", texts, lines=lines),
    ]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
