"""A study from the words of a command line: `--sweep z=16,64 --sweep device.launch="5 us,9 us"`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simgpt.question import Question
from simgpt.question_rows import QuestionError
from simgpt.step import plan_table
from simgpt.studies.study import Study, study_of

OPEN, CLOSE = "[(", "])"


def study_of_words(question: Question, swept: Sequence[str] = ()) -> Study:
    """The study of a question with values to sweep, as of `--sweep`."""
    document = question.as_toml()
    document |= {"plan": plan_table(question.plan), "placement": question.placement}
    document |= {"sweep": swept_words(swept)}
    return study_of(document, title=f"{question.model} on {question.machine}", folder=Path())


def swept_words(words: Sequence[str]) -> dict[str, list[str]]:
    """The values of each `key=v1,v2,…`; a key may be given once.

    >>> swept_words(["z=1,2", "placement=hosts:n[1-2,7],random"])
    {'z': ['1', '2'], 'placement': ['hosts:n[1-2,7]', 'random']}
    """
    found: dict[str, list[str]] = {}
    for word in words:
        key, equals, values = word.partition("=")
        if not equals or not key:
            raise QuestionError(f"--sweep {word}: write key=v1,v2,…, as in z=16,64")
        if key in found:
            raise QuestionError(f"--sweep {key} stands twice; give all its values in one")
        if key == "plan":
            raise QuestionError(
                "--sweep plan=…: sweep the plan's keys, or list plans in a study file"
            )
        found[key] = _split(values)
        if not all(found[key]):
            raise QuestionError(f"--sweep {word} has an empty value")
    return found


def _split(values: str) -> list[str]:
    """The values between semicolons where there are any, else between commas; one in brackets
    belongs to its value.

    >>> _split("40x8xH200,8xNDR;dgx-h100")
    ['40x8xH200,8xNDR', 'dgx-h100']
    """
    found, depth = [""], 0
    between = ";" if ";" in values else ","
    for letter in values:
        depth += (letter in OPEN) - (letter in CLOSE)
        if letter == between and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [value.strip() for value in found]
