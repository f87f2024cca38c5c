"""What a page says first: the question, its answer, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topologies.files.units import format_energy, format_quantity
from topologies.records import record
from validation.report.answers import Answers
from validation.report.figures.efficiency import KEPT_WORDS, Reach, reach_of
from validation.report.figures.scaling_figures import seconds
from validation.report.findings import MEASURES, Finding, best_of
from validation.report.read_prediction import Answer
from validation.report.whole_run.calendar import Calendar
from validation.report.words import hours, percent, several
from validation.weak_scaling import Rung

AIMS = {
    "time": "the fastest step",
    "node-hours": "the fewest node-hours a step",
    "energy": "the least energy a step",
}


@record(slots=False)
class Headline:
    """The question and the answer, in few words. `about` is the step that the page draws, `study`
    the title of what was swept."""

    question: str
    answer: str
    sentence: str
    about: Answer | None
    study: str = ""

    @property
    def title(self) -> str:
        """The page's title, for a browser's tab."""
        about = self.about
        if self.study or about is None:
            return self.study or "simgpt report"
        return f"{about.model} on {_where(about)}"


def headline(answers: Answers, ladders: Mapping[str, Sequence[Rung]]) -> Headline:
    """What the answers are about: a step that was explained, else the first search or sweep, else
    the best of the predictions, else how far they are from what was measured."""
    explained = [answer for answer in answers.predictions if answer.why]
    if explained:
        return _one(best_of(explained, "throughput") or explained[0])
    if answers.findings:
        return _found(answers.findings[0])
    found = answers.predictions
    if len(found) == 1:
        return _one(found[0])
    if not found and answers.calendars and not answers.pairs:
        return _ended(answers.calendars[0])
    if found:
        return _best(Finding("throughput", best_of(found, "throughput"), found))
    return _measured(answers, ladders)


Question = tuple[str, str, int, int]


def question_of(answer: Answer) -> Question:
    """Model, machine, devices and batch; what was changed of model and machine is left out."""
    model, machine = (name.partition(" with ")[0] for name in (answer.model, answer.machine))
    return model, machine, answer.devices, answer.batch


def _one(answer: Answer) -> Headline:
    question = (
        f"How long does one training step of {answer.model} take on {_where(answer)}, "
        f"{_how(answer)}?"
    )
    sentence = str(answer.why.get("sentence", ""))
    return Headline(question, seconds(answer.step_s), sentence, answer)


def _where(answer: Answer) -> str:
    return f"{several(answer.devices, 'device')} of {answer.machine}"


def _how(answer: Answer) -> str:
    return f"split {answer.plan}, with a batch of {several(answer.batch, 'sequence')}"


def _found(finding: Finding) -> Headline:
    if finding.proof is not None:
        return _search(finding, finding.proof)
    reach = reach_of(finding.ladders)
    return _scaling(finding, reach) if reach else _best(finding)


def _search(finding: Finding, proof: tuple[str, float | None]) -> Headline:
    words, gap = proof
    best = finding.best
    asked = finding.asked or (f"{best.model} on {_where(best)}" if best else "this model")
    which = "Which plan" if gap is not None else "Which of the plans that are shown"
    question = f"{which} has {AIMS.get(finding.measure, 'the best step')} of {asked}?"
    if best is None:
        return Headline(question, "None that fits" if gap == 0 else "None found", f"{words}.", None)
    sure = {None: "", 0.0: "Proved optimal. "}.get(gap)
    if sure is None:
        sure = f"Not proved optimal: it may miss the optimum by {percent(gap or 0.0)}. "
    words = words.removesuffix(".")
    return Headline(question, _value(finding.measure, best), f"{sure}{_of(best)} {words}.", best)


def _value(measure: str, answer: Answer) -> str:
    """What the answer is best in."""
    node_s, energy_j = (answer.cost.get(key) for key in ("node_s_per_step", "energy_j_per_step"))
    if measure == "node-hours" and node_s is not None:
        return f"{hours(node_s)} node-hours"
    if measure == "energy" and energy_j is not None:
        return format_energy(energy_j)
    if measure == "memory":
        return format_quantity(answer.peak_bytes, "bytes", binary=True)
    if measure == "throughput":
        return f"{format_quantity(answer.flops_per_s / answer.devices, 'FLOP/s')} per device"
    return seconds(answer.step_s)


def _of(answer: Answer) -> str:
    return f"{answer.model} on {_where(answer)}, {_how(answer)}."


def _scaling(finding: Finding, reach: Reach) -> Headline:
    question = f"Up to how many devices does it keep {KEPT_WORDS} of its parallel efficiency?"
    kind = f"{reach.ladder.kind} scaling".capitalize()
    sentence = f"{reach.sentence} {kind}: model FLOP/s per device over those of the first rung."
    return Headline(
        question, several(reach.last.devices, "device"), sentence, reach.last, finding.title
    )


def _best(finding: Finding) -> Headline:
    """Of several steps the best, by the measure that the study's table is sorted by too."""
    measure, best, title = MEASURES[finding.measure], finding.best, finding.title
    if len(finding.answers) == 1 and best is not None:
        only = _one(best)
        return Headline(only.question, only.answer, only.sentence, best, title)
    steps = f"{len(finding.answers):,} predicted steps{_shared(finding.answers)}"
    question = f"Which of {steps} has the {measure}, and fits?"
    if best is None:
        return Headline(question, "None fits", "", finding.answers[0], title)
    return Headline(question, _value(finding.measure, best), _of(best), best, title)


def _shared(found: Sequence[Answer]) -> str:
    """The one question that all steps answer, in words; nothing where there are several."""
    questions = {question_of(answer) for answer in found}
    if len(questions) > 1:
        return ""
    model, machine, devices, batch = questions.pop()
    where = f"{several(devices, 'device')} of {machine}"
    return f" of {model} on {where} with a batch of {several(batch, 'sequence')}"


def _ended(calendar: Calendar) -> Headline:
    """When a whole run ends."""
    low, middle, high = calendar.ends
    question = f"When is the training of {calendar.model} on {calendar.where} done?"
    sentence = f"Started on {calendar.start}; 80 % of such runs end between {low} and {high}."
    return Headline(question, middle, sentence, None)


def _measured(answers: Answers, ladders: Mapping[str, Sequence[Rung]]) -> Headline:
    errors = [abs(pair.error) for pair in answers.pairs if pair.error is not None]
    every = [each.error for rungs in ladders.values() for each in rungs]
    points = [abs(error) for error in every if error is not None]
    steps = several(len(answers.pairs), "measured step")
    if points and not errors:
        errors, steps = points, several(len(points), "published step")
    question = f"How far are predictions from {steps}?"
    mean = f"{percent(sum(errors) / len(errors))}, on average" if errors else "None is known"
    return Headline(question, mean, "", None)
