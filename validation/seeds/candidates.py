"""The candidates of a run whose plan was published in part, predicted; the rule for them stands at
the head of `validation/data/seeds.toml`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from itertools import product
from typing import Any

from simulator.predict import Prediction, predict
from simulator.search.baselines import by_axonn
from simulator.search.problem import SearchProblem
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from topologies.errors import SimgptError
from topologies.files.reading import shipped_toml
from topologies.machine_files import load_machine
from topologies.placement import scheduler
from topologies.records import record
from workload.errors import PlanCannotRunError
from workload.gpt import find_model
from workload.grid import USUAL
from workload.plan_text import parse_fields


@record(slots=False, kw_only=True)
class SeedRun:
    """A run of a paper: what is published of it, and candidates for the rest.

    With `grids` as many grids of AxoNN's communication model are candidates, else all combinations
    of the values in `candidates`. `of` names another run, whose candidates' plans this one has,
    each with the words of `change`. Runs of a `ladder` are rungs of weak scaling.
    """

    id: str
    model: str = ""
    machine: str = ""
    devices: int = 0
    batch: int = 8192
    stack: str = "axonn"
    plan: Mapping[str, Any] = field(default_factory=dict)
    candidates: Mapping[str, list[Any]] = field(default_factory=dict)
    grids: int = 0
    ladder: bool = False
    of: str = ""
    change: Mapping[str, Any] = field(default_factory=dict)


@record(slots=False)
class Candidates:
    """The predictions of a run's candidates that fit into a device, and which of them is meant:
    the fastest, per sequence. `chosen` says that the authors chose among them by measuring."""

    predictions: tuple[Prediction, ...]
    chosen: bool

    @property
    def best(self) -> Prediction:
        """The fastest of them."""
        return min(self.predictions, key=_sequence_s)

    @property
    def possible(self) -> list[Prediction]:
        """The candidates that may have run: where the authors chose, those that cannot be told from
        the fastest, by the error of a difference between two plans."""
        if not self.chosen:
            return list(self.predictions)
        most_s = _sequence_s(self.best) * (1 + self.best.difference_error.share)
        return [each for each in self.predictions if _sequence_s(each) <= most_s]


class SeedRuns:
    """The runs of the data file, each predicted once, when it is first asked for."""

    def __init__(self, progress: Callable[[str], None] = lambda _: None) -> None:
        self._runs = seed_runs()
        self._found: dict[str, Candidates] = {}
        self._progress = progress

    def __getitem__(self, name: str) -> Candidates:
        if name not in self._found:
            self._progress(f"predicting {name}")
            run = self._runs[name]
            self._found[name] = self._changed(run) if run.of else _predicted(run)
        return self._found[name]

    def _changed(self, run: SeedRun) -> Candidates:
        """The candidates of the run that this one is made from, in their order, with other words;
        all of them, so that the two can be compared one by one, whether they fit or not."""
        base, others = self._runs[run.of], self[run.of]
        changed = parse_fields(run.change)
        if "batch" in changed:
            return Candidates((_again(base, others.best, changed),), others.chosen)
        found = tuple(_again(base, each, changed) for each in others.predictions)
        return Candidates(found, others.chosen)


def seed_runs() -> dict[str, SeedRun]:
    """The runs of the data file by their ids."""
    runs = [SeedRun(**run) for run in shipped_toml("validation", "data/seeds.toml")["run"]]
    return {run.id: run for run in runs}


def published_hfus() -> dict[str, float]:
    """The published shares of the advertised peak, recomputation counted, by run."""
    figures = shipped_toml("validation", "data/seeds.toml")["figure"]
    rows = (row for figure in figures if figure["kind"] == "hfu" for row in figure["rows"])
    known = (row for row in rows if "published" in row)
    return {row["run"]: round(row["published"] / 100, 6) for row in known}


def _sequence_s(prediction: Prediction) -> float:
    return prediction.step_s / prediction.plan.batch


def _predicted(run: SeedRun) -> Candidates:
    found = tuple(_of_grids(run) if run.grids else _of_fields(run))
    if not found:
        raise PlanCannotRunError(f"no candidate for {run.id} can run and fits into a device")
    return Candidates(found, chosen=bool(run.grids))


def _of_grids(run: SeedRun) -> Iterator[Prediction]:
    stack = load_stack(run.stack)
    words = {**stack.plan_defaults(1, run.plan), **run.plan, "order": USUAL}
    problem = SearchProblem(
        find_model(run.model), run.devices, run.batch, parse_fields(words), stack=stack
    )
    ranked = by_axonn(problem, load_machine(run.machine), top=run.grids)
    return (each.prediction for each in ranked)


def _of_fields(run: SeedRun) -> Iterator[Prediction]:
    """Predict all combinations of fields that are legal and fit."""
    machine, stack = load_machine(run.machine), load_stack(run.stack)
    for values in product(*run.candidates.values()):
        words = {"dp": "rest", "batch": run.batch, **run.plan}
        words |= dict(zip(run.candidates, values, strict=True))
        try:
            job = job_of(find_model(run.model), words, stack, devices=run.devices)
            placed = scheduler(machine, run.devices)
            found = predict(job.gpt, job.plan, machine, placement=placed, stack=job.stack)
        except SimgptError:
            continue
        if found.memory.fits:
            yield found


def _again(run: SeedRun, prediction: Prediction, changed: Mapping[str, Any]) -> Prediction:
    """A prediction of a run with other words of its plan."""
    machine, plan = load_machine(run.machine), prediction.plan.changed(**changed)
    placed = scheduler(machine, run.devices)
    return predict(prediction.gpt, plan, machine, placement=placed, stack=prediction.stack)
