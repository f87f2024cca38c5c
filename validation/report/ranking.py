"""In which order predictions are shown: the best first, by what the answer is the best in."""

from __future__ import annotations

from collections.abc import Sequence

from validation.report.answers import Answers
from validation.report.figures.efficiency import reach_of
from validation.report.findings import Finding, is_plan, value_by
from validation.report.read_prediction import Answer

USUAL = "throughput"


def ranked(answers: Answers) -> list[Answer]:
    """All predictions, those that do not fit last. Each search and sweep is ranked by itself, and
    so are the predictions that belong to none."""
    groups = [_ranked(finding) for finding in answers.findings]
    known = {answer for group in groups for answer in group}
    alone = [answer for answer in answers.predictions if answer not in known]
    groups += [sorted(alone, key=lambda answer: value_by(USUAL, answer))] if alone else []
    places = {answer: place for place, answer in enumerate(answers.predictions)}
    groups.sort(key=lambda group: min((places[answer] for answer in group), default=0))
    every = [answer for group in groups for answer in group]
    return sorted(every, key=lambda answer: not answer.fits)


def is_climbed(finding: Finding) -> bool:
    """Whether its answer is how far it scales, so that its rungs are told of one after another."""
    return reach_of(finding.ladders) is not None


def _ranked(finding: Finding) -> list[Answer]:
    """The rungs of a scaling study stay in their order; of a search, its plans come before what it
    found besides, which is best in something else."""
    if is_climbed(finding):
        return list(finding.answers)
    if finding.proof is None:
        return sorted(finding.answers, key=lambda answer: value_by(finding.measure, answer))
    plans = [answer for answer in finding.answers if is_plan(answer)]
    others = [answer for answer in finding.answers if not is_plan(answer)]
    return [*sorted(plans, key=lambda answer: value_by(finding.measure, answer)), *others]


def chosen(
    every: Sequence[Answer], answers: Answers, about: Answer | None, most: int
) -> list[Answer]:
    """Of all in their order so many: what the page is about, the best of each search and sweep, and
    then the first."""
    best = [about, *(finding.best for finding in answers.findings)]
    wanted = dict.fromkeys(answer for answer in (*best, *every) if answer is not None)
    kept = set(list(wanted)[:most])
    return [answer for answer in every if answer in kept]
