"""Several questions on one page: answers to the same one stand together, each with its headline."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from validation.report.answers import Answers
from validation.report.facts import facts_of
from validation.report.figures.drawn_step import Scene
from validation.report.figures.labels import labels
from validation.report.figures.scaling_figures import seconds
from validation.report.figures.side_by_side import differences
from validation.report.figures.side_by_side import side_by_side as drawn_aside
from validation.report.figures.timeline_data import key_of, timeline_data
from validation.report.findings import Finding
from validation.report.headline import headline, question_of
from validation.report.page import Drawing, PageTable, Player, Section
from validation.report.ranking import ranked
from validation.report.read_prediction import Answer
from validation.report.sections import failures_of, predictions

ALIGNED = "Both steps from their begin, on one axis of time."
ASIDE = 2  # ranks of each step that are drawn side by side


def questions_of(answers: Answers) -> list[Answers]:
    """Answers apart by question: how fast a model is on so many devices of a machine with a batch.

    What was changed of the model or the machine does not make another question, but another answer.
    A search belongs to the question of its best plan; a sweep over several models, machines,
    numbers of devices or batches is a question of its own.
    """
    groups: dict[Hashable, Answers] = {}
    known: set[Answer] = set()
    for number, finding in enumerate(answers.findings):
        key = _of_finding(finding) or number
        found = Answers(finding.answers, findings=[finding])
        groups[key] = groups.get(key, Answers()) + found
        known.update(finding.answers)
    for answer in answers.predictions:
        if answer not in known:
            key = question_of(answer)
            groups[key] = groups.get(key, Answers()) + Answers([answer])
    places = {answer: place for place, answer in enumerate(answers.predictions)}
    each = list(groups.values())
    each.sort(key=lambda group: min((places[one] for one in group.predictions), default=0))
    return each


def _of_finding(finding: Finding) -> Hashable:
    """The one question of a search or a sweep; None where there are none or several."""
    if finding.proof is not None:
        return question_of(finding.best) if finding.best else None
    keys = {question_of(answer) for answer in finding.answers}
    return keys.pop() if len(keys) == 1 else None


def question_sections(answers: Answers, groups: Sequence[Answers]) -> list[Section]:
    """A section for each question, and one for what has no answer."""
    found = [_section(group, number) for number, group in enumerate(groups, start=1)]
    tables = failures_of(answers.failures)
    failed = Section("failures", "Points without an answer", tables=tables)
    return [*found, failed] if tables else found


def _section(group: Answers, number: int) -> Section:
    head = headline(group, {})
    anchor = f"question-{number}"
    about = head.about
    section = predictions(group, about, anchor) or Section(anchor, "")
    step = about is not None and head.answer != seconds(about.step_s)
    return replace(
        section,
        anchor=anchor,
        title=head.question,
        short=f"Question {number}",
        answer=head.answer,
        sentence=head.sentence,
        facts=facts_of(about, step=step) if about else (),
    )


def runner_up(about: Answer | None, groups: Sequence[Answers]) -> Answer | None:
    """The best of the other answers to the same question that fit; None where there is none."""
    group = next((group for group in groups if about in group.predictions), Answers())
    others = (each for each in ranked(group) if each is not about and each.fits)
    return next((each for each in others if about and _differ(each, about)), None)


def _differ(one: Answer, other: Answer) -> bool:
    return one.asked != other.asked


def side_by_side(scenes: Sequence[Scene]) -> Section:
    """Two plans of one question: what differs, and their timelines on one axis of time."""
    first, second = (scene.answer for scene in scenes)
    names = labels([first, second])
    rows = [("plan", first.plan, second.plan), *differences(first, second)]
    parts = [
        f"{' '.join(name.split())}: drawn with {scene.micro_batches}."
        for scene, name in zip(scenes, names, strict=True)
        if not scene.is_whole
    ]
    data = [timeline_data(scene) for scene in scenes]
    names = [" ".join(name.split()) for name in names]
    player = Player("beside", range(len(scenes)), key_of(data), ASIDE, names)
    columns = ("", *names)
    return Section(
        "side-by-side",
        "Two plans side by side",
        ["The answer, and the best of the other plans for the same question that fit.", *parts],
        [Drawing("side-by-side", drawn_aside(scenes, names), ALIGNED, still=True)],
        [PageTable(columns, rows, left=1)],
        player=player,
    )
