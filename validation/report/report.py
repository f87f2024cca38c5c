"""A whole report from answers: which one it is about, what is drawn of it, and how it was made."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from topologies.errors import SimgptError
from validation.report import sections
from validation.report.answers import Answers
from validation.report.figures import seconds
from validation.report.page import Page, Section, html
from validation.report.prediction import Answer
from validation.report.scene import Scene, staged
from validation.report.style import drawing, write_figure
from validation.report.timeline_data import timeline_data
from validation.weak_scaling import Rung

PACKAGES = ("simgpt", "numpy", "simpy", "networkx", "matplotlib", "jinja2")
MOST_COMMANDS = 20
Progress = Callable[[str], None]


def main_answer(answers: Answers) -> Answer | None:
    """The prediction that a report is about: one that was explained, or the fastest that fits."""
    explained = [answer for answer in answers.predictions if answer.why]
    fitting = [answer for answer in answers.predictions if answer.fits]
    among = explained or fitting or list(answers.predictions)
    return max(among, key=lambda answer: answer.tokens_per_s, default=None)


def write_report(
    answers: Answers,
    ladders: Mapping[str, Sequence[Rung]],
    *,
    page: Path | None,
    folder: Path | None,
    progress: Progress,
) -> list[Path]:
    """Draw everything once, into a page, into a folder of figures, or into both."""
    with drawing():
        made = _page(answers, ladders, progress)
        written = []
        if page is not None:
            progress("writing the page")
            _write(page, html(made, _version("simgpt")))
            written.append(page)
        if folder is not None:
            for section in made.sections:
                for each in section.drawings:
                    progress(f"drawing {each.name}")
                    written += write_figure(each.figure, folder, each.name)
    return written


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise SimgptError(f"cannot write {path}: {error.strerror}") from None


def _page(answers: Answers, ladders: Mapping[str, Sequence[Rung]], progress: Progress) -> Page:
    answer = main_answer(answers)
    scene, missing = _scene(answer, progress)
    progress("drawing")
    found = [
        sections.reasons(answer.why) if answer else None,
        sections.measured(answers.pairs),
        sections.scaling(answers.predictions),
        sections.weak_scaling(ladders),
        sections.predictions(answers),
        *(sections.simulated(scene) if scene else []),
        Section("not-drawn", "Not drawn", [missing]) if missing else None,
        _made_by(answers, ladders),
    ]
    shown = [section for section in found if section is not None]
    timeline = timeline_data(scene) if scene else {}
    if answer is None:
        return _page_without_prediction(answers, ladders, shown)
    return Page(
        title=f"{answer.model} on {answer.devices:,} devices of {answer.machine}",
        question=_question(answer, len(answers.predictions)),
        answer=seconds(answer.step_s),
        sentence=_sentence(answer, len(answers.predictions)),
        facts=sections.facts_of(answer),
        sections=shown,
        timeline=timeline,
    )


def _page_without_prediction(
    answers: Answers, ladders: Mapping[str, Sequence[Rung]], shown: Sequence[Section]
) -> Page:
    errors = [abs(pair.error) for pair in answers.pairs if pair.error is not None]
    points = [abs(each.error) for rungs in ladders.values() for each in rungs if each.error]
    if errors or not points:
        question = f"How far are predictions from {len(answers.pairs):,} measured steps?"
    else:
        errors, question = points, f"How far are predictions from {len(points)} published steps?"
    mean = (
        f"{sections.percent(sum(errors) / len(errors))}, on average" if errors else "None is known"
    )
    return Page("simgpt report", question, mean, "", (), shown)


def _question(answer: Answer, among: int) -> str:
    """Of several predictions without an explanation, the best is asked for."""
    if among > 1 and not answer.why:
        return f"Which of {among:,} predicted steps makes the most tokens per second, and fits?"
    where = f"{answer.devices:,} devices of {sections.machine_of(answer)}"
    split = f"split {answer.plan}, with a batch of {answer.batch:,} sequences"
    return f"How long does one training step of {answer.model} take on {where}, {split}?"


def _sentence(answer: Answer, among: int) -> str:
    if answer.why or among < 2:
        return str(answer.why.get("sentence", "")).replace(" %", "\N{NO-BREAK SPACE}%")
    what = f"{answer.model} on {answer.devices:,} devices of {sections.machine_of(answer)}"
    return f"It is that of {what}, split {answer.plan}, with {answer.batch:,} sequences."


def _scene(answer: Answer | None, progress: Progress) -> tuple[Scene | None, str]:
    """The step simulated again, or why it could not be."""
    if answer is None:
        return None, ""
    progress(f"simulating {answer.model} on {answer.devices:,} devices again")
    try:
        return staged(answer), ""
    except SimgptError as error:
        return None, f"Timeline, memory over time and links are not drawn: {error}."


def _made_by(answers: Answers, ladders: Mapping[str, Sequence[Rung]]) -> Section:
    commands = list(dict.fromkeys(answer.command for answer in answers.predictions))
    lines = commands[:MOST_COMMANDS]
    if ladders:
        lines.append("simgpt report --weak-scaling -o weak-scaling.html")
    files = dict.fromkeys(pair.origin for pair in answers.pairs)
    texts = [", ".join(f"{name} {_version(name)}" for name in PACKAGES)
             + f", Python {platform.python_version()}."]  # fmt: skip
    if files:
        texts.append(f"Measured steps are from {', '.join(files)}.")
    if len(commands) > MOST_COMMANDS:
        texts.append(f"The first {MOST_COMMANDS} of {len(commands):,} commands:")
    return Section("made-by", "Commands and versions", texts, lines=lines)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
