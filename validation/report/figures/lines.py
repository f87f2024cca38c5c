"""What belongs to one line of a figure over the number of devices, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import count, repeat

from validation.report.answers import Answers
from validation.report.findings import Ladder, label
from validation.report.read_prediction import Answer

IN_NAMES = ("model", "machine", "placement", "compute")  # keys that the two names tell of already
OTHERS = "other answers"
MISSING = {"kind": OTHERS}  # what a line without such a trait is called, where others have one


def ladders_of(answers: Answers) -> dict[str, Ladder]:
    """The ladders of all scaling studies and the lines of the other answers, those of two rungs or
    more that fit, each by what tells it from the rest."""
    ladders = [ladder for finding in answers.findings for ladder in finding.ladders]
    known = {rung for ladder in ladders for rung in ladder.rungs}
    ladders += _others([answer for answer in answers.predictions if answer not in known])
    climbing = [ladder for ladder in ladders if _climbs(ladder.rungs)]
    return dict(zip(_names([_traits(ladder) for ladder in climbing]), climbing, strict=True))


def scaling_lines(ladders: Mapping[str, Ladder]) -> dict[str, list[Answer]]:
    """Of each ladder the fastest rung that fits, for each number of devices."""
    return {name: _fastest(ladder.rungs) for name, ladder in ladders.items()}


def where(ladder: Ladder) -> str:
    """The model and the machine of a ladder, as far as all its rungs share them."""
    models, machines = ({*each} for each in zip(*map(_place, ladder.rungs), strict=True))
    shared = [*(models if len(models) == 1 else ()), *(machines if len(machines) == 1 else ())]
    return " on ".join(shared)


def _others(answers: Sequence[Answer]) -> list[Ladder]:
    """Lines of answers of no scaling study. One is of a model on a machine with a batch; where no
    batch stands at two numbers of devices, of a model on a machine; and where no model does, as in
    weak scaling of models that grow, of a machine."""
    lines: list[list[Answer]] = []
    for group in _grouped(answers, _place):
        same = [line for line in _grouped(group, lambda answer: answer.batch) if _climbs(line)]
        lines += same or [group]
    lines = [line for line in lines if _climbs(line)]
    return [
        Ladder({}, "", sorted(line, key=lambda answer: answer.devices))
        for line in lines or _grouped(answers, lambda answer: answer.machine)
    ]


def _place(answer: Answer) -> tuple[str, str]:
    return answer.model, answer.machine


def _grouped(answers: Iterable[Answer], key: Callable[[Answer], Hashable]) -> list[list[Answer]]:
    groups: dict[Hashable, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(key(answer), []).append(answer)
    return list(groups.values())


def _climbs(rungs: Sequence[Answer]) -> bool:
    return len({rung.devices for rung in rungs if rung.fits}) > 1


def _fastest(rungs: Sequence[Answer]) -> list[Answer]:
    best: dict[int, Answer] = {}
    for rung in rungs:
        known = best.get(rung.devices)
        if rung.fits and (known is None or rung.tokens_per_s > known.tokens_per_s):
            best[rung.devices] = rung
    return [best[devices] for devices in sorted(best)]


def _traits(ladder: Ladder) -> dict[str, str]:
    """What may tell a ladder from others, what people look for first before the rest."""
    batches = sorted({rung.batch for rung in ladder.rungs})
    upto = f" to {batches[-1]:,}" if len(batches) > 1 else ""
    keys = [key for key in ladder.varied if key.partition(".")[0] not in IN_NAMES]
    return {
        "where": where(ladder),
        "kind": f"{ladder.kind} scaling" if ladder.kind else "",
        **{key: label(ladder.varied, [key]) for key in keys},
        "batch": f"batch={batches[0]:,}{upto}",
        "study": ladder.study,
    }


def _names(traits: Sequence[Mapping[str, str]]) -> list[str]:
    """For each the traits that tell it apart, and a number where none does."""
    telling: list[str] = []
    for key in dict.fromkeys(key for each in traits for key in each):
        if _classes(traits, [*telling, key]) > _classes(traits, telling):
            telling.append(key)
    names: list[str] = []
    for each in traits:
        words = [each.get(key) or MISSING.get(key) for key in telling]
        words = words or [each["where"], each["kind"]]
        name = ", ".join(filter(None, words))
        names.append(next(n for n in map(_numbered, repeat(name), count(1)) if n not in names))
    return names


def _numbered(name: str, number: int) -> str:
    return f"{name} ({number})" if number > 1 else name


def _classes(traits: Sequence[Mapping[str, str]], keys: Sequence[str]) -> int:
    return len({tuple(each.get(key) for key in keys) for each in traits})
