"""A study: what is fixed, what is varied, and so the list of its points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simgpt.question import BEST, PLAIN, Question, canonical, flat, ordered, table_of, value
from simgpt.question_rows import QuestionError
from simgpt.studies.scaling import Point, Scaling, check_once, read_scaling
from topologies.files.printable import MOST_WORD, path_shown, shown
from topologies.files.reading import UserFile
from topologies.records import record

TABLES = ("title", "set", "sweep", "point", "scaling")
_FILE = UserFile("study", QuestionError)
MOST_POINTS = 100_000  # some 300 MB of rows


@record(slots=False)
class Study:
    """Every `listed` point with every combination of the `swept` values, on every rung of a scaling
    study; the last varies fastest. `folder` is where the files lie that it names."""

    title: str
    base: Point
    listed: tuple[Point, ...] = ()
    swept: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    scaling: Scaling | None = None
    folder: Path = Path()

    def __post_init__(self) -> None:
        groups = [list(dict.fromkeys(key for point in self.listed for key in point))]
        groups += [[key] for key, _ in self.swept]
        groups += [list(self.scaling.keys)] if self.scaling else []
        for key in itertools.chain(*groups):
            if sum(key in group for group in groups) > 1:
                raise QuestionError(f"{key} is varied twice: by [sweep], [[point]] or [scaling]")
        if len(self) > MOST_POINTS:
            raise QuestionError(f"the study has {len(self):,} points, more than {MOST_POINTS:,}")
        for point in self.points():
            self._check(point)

    def __len__(self) -> int:
        rungs = len(self.scaling.rungs) if self.scaling else 1
        return max(len(self.listed), 1) * math.prod(len(v) for _, v in self.swept) * rungs

    @property
    def varied(self) -> tuple[str, ...]:
        """The keys that differ among points: listed ones, swept ones, those of the rungs."""
        keys = self._differing(self.listed)
        keys += [key for key, values in self.swept if len(values) > 1]
        return (*keys, *self._differing(self.scaling.rungs if self.scaling else ()))

    def _differing(self, points: Sequence[Point]) -> list[str]:
        keys = dict.fromkeys(key for point in points for key in point)
        given = {
            key: [repr(point.get(key, self.base.get(key))) for point in points] for key in keys
        }
        return [key for key in keys if len(set(given[key])) > 1]

    def points(self) -> Iterator[Point]:
        """All points, in their order."""
        rungs = self.scaling.rungs if self.scaling else ({},)
        names = [key for key, _ in self.swept]
        for listed in self.listed or ({},):
            for chosen in itertools.product(*(values for _, values in self.swept)):
                for rung in rungs:
                    swept = dict(zip(names, chosen, strict=True))
                    yield ordered({**self.base, **listed, **swept, **rung})

    def question_of(self, point: Point) -> Question:
        """The question that a point asks."""
        return question_of_point(point, self.folder)

    def as_dict(self) -> dict[str, Any]:
        """The study as it is kept beside its results."""
        return {
            "title": self.title,
            "points": len(self),
            "varied": list(self.varied),
            "base": ordered(self.base),
            "point": [ordered(point) for point in self.listed],
            "sweep": {key: list(values) for key, values in self.swept},
            "scaling": self.scaling
            and {"kind": self.scaling.kind, "rungs": [dict(r) for r in self.scaling.rungs]},
        }

    def _check(self, point: Point) -> None:
        for key in ("model", "machine"):
            if key not in point:
                raise QuestionError(f"{self.title} names no {key}; give {key} = … or list some")
        if "batch" in point and "batch_tokens" in point:
            raise QuestionError(f"{self.title} gives batch and batch_tokens; give one of them")
        if point.get("compute") == "measured":
            raise QuestionError(
                f"{self.title}: compute = measured times the ops of one plan alone; a sweep has "
                "machine or profile"
            )
        sized = "devices" in point and ("batch" in point or "batch_tokens" in point)
        if point.get("plan") == BEST and not sized:
            raise QuestionError(f'{self.title}: plan = "best" needs devices and a batch')


def question_of_point(point: Point, folder: Path) -> Question:
    """The question that a point asks, whose files lie in a folder; of one that asks for the best
    plan, with the keys that all plans keep as its plan."""
    kept = {**point, "plan": ""} if point.get("plan") == BEST else point
    return Question.of_table(kept, folder)


def read_study(path: Path) -> Study:
    """The study that a TOML file describes."""
    text = _FILE.text(path)
    document = _FILE.parsed(text, path_shown(path), toml=True)
    for key in document:
        if key not in (*PLAIN, *TABLES):
            raise QuestionError(
                f"unknown key {key!r} in {path}; known: {', '.join((*PLAIN, *TABLES))}; what is "
                "fixed of a plan, model or machine goes under [set], what varies under [sweep]"
            )
    return study_of(
        document, title=shown(document.get("title", path.stem), MOST_WORD), folder=path.parent
    )


def study_of(document: Mapping[str, Any], *, title: str, folder: Path) -> Study:
    """The study of a file's document."""
    top = {key: given for key, given in document.items() if key in PLAIN}
    base = table_of({**top, "set": _table(document, "set")})
    listed = document.get("point", [])
    if not isinstance(listed, list) or not all(isinstance(point, dict) for point in listed):
        raise QuestionError("point must be a list of tables: write [[point]] above each of them")
    scaling = document.get("scaling")
    return Study(
        title=title,
        base=base,
        listed=tuple(table_of(flat(point)) for point in listed),
        swept=swept_of(flat(_table(document, "sweep"))),
        scaling=None if scaling is None else read_scaling(_table(document, "scaling"), base),
        folder=folder,
    )


def swept_of(lists: Mapping[str, Any]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """The lists of values to sweep, by the full names of their keys."""
    found: dict[str, tuple[Any, ...]] = {}
    for given, values in lists.items():
        key = canonical(given)
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise QuestionError(f"sweep.{given} = {values} must be a list of values")
        if not values:
            raise QuestionError(f"sweep.{given} is empty; give it at least one value")
        if key in found:
            raise QuestionError(f"{key} stands twice in [sweep]")
        found[key] = tuple(value(key, each) for each in values)
        check_once(f"sweep.{given}", found[key])
    return tuple(found.items())


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise QuestionError(f"{name} = {table} must be a table: write [{name}] above its keys")
    return table
