"""From a point to its row: the prediction, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from simgpt.advice import does_not_fit
from simgpt.question import BEST, Question
from simgpt.step import Sources, batch_of, fixed_of, stack_of, step_of
from simgpt.studies.errors import WorkersError
from simgpt.studies.inputs import Inputs, code_digest
from simgpt.studies.scaling import Point
from simgpt.studies.study import question_of_point
from simulator.predict import Prediction
from simulator.stacks import Stack
from topologies.errors import SimgptError
from topologies.exit_status import ExitStatus
from topologies.machine import Machine
from topologies.machine_files import with_settings
from topologies.placement import Placement, with_room
from topologies.session import current_session, gc_paused
from workload.descriptions.from_table import with_fields
from workload.expert_loads.histogram import routed
from workload.expert_loads.histogram_file import histogram_of
from workload.gpt import GPT

Row = dict[str, Any]
MACHINES, PLACEMENTS = 16, 64  # kept in a process; a placement of 32,768 ranks takes 0.5 MB
Batch = list[tuple[int, Point]]
# A module or an object that does not fit is an ImportError or a SystemError as often as not.
OF_THE_MACHINE = (OSError, ImportError, SystemError, MemoryError)
MOST_CAUSES = 100  # they may form a ring


def rows_of(inputs: Inputs, batch: Batch) -> list[Row]:
    """The rows of some points; what workers on this machine and on others run."""
    try:
        if inputs.code != code_digest():
            raise WorkersError(
                "the workers run another version of simgpt; install the same everywhere"
            )
        evaluator = current_session().cache_of(Evaluator, 2)(inputs)
        with gc_paused():
            return [evaluator.row(number, point) for number, point in batch]
    except OF_THE_MACHINE as error:
        raise _failed(batch[0][0], _named(error)) from None


class StudySources(Sources):
    """What the names of a study's questions stand for, read before: a process builds each machine
    and placement once and keeps it for the points to come."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(tells=False)
        self._inputs = inputs
        self._machine = lru_cache(maxsize=MACHINES)(self._set)
        self._placed = lru_cache(maxsize=PLACEMENTS)(super().placed)

    def model(self, question: Question) -> GPT:
        """The model of a question, and its histogram."""
        gpt = with_fields(self._inputs.models[question.model], question.model_set)
        if not question.routing:
            return gpt
        document = self._inputs.routings[question.routing]
        return routed(gpt, histogram_of(document, gpt, question.routing))

    def machine(self, question: Question) -> Machine:
        """The machine of a question."""
        settings = tuple((key, _hashable(given)) for key, given in question.set.items())
        return self._machine(question.machine, settings)

    def _set(self, name: str, settings: tuple[tuple[str, Any], ...]) -> Machine:
        machine = self._inputs.machines[name]
        return with_settings(machine, dict(settings)) if settings else machine

    def stack(self, name: str) -> Stack:
        """The stack of a name; one that points need not name comes with simgpt."""
        return self._inputs.stacks.get(name) or super().stack(name)

    def plan(self, text: str) -> str | Mapping[str, Any]:
        """The text of a plan, or the table of its file."""
        found: str | Mapping[str, Any] = self._inputs.plans.get(text, text)
        return found

    def placed(self, policy: str, machine: Machine, ranks: int) -> Placement:
        """Where a policy places ranks."""
        return self._placed(policy, machine, ranks)


def _hashable(given: Any) -> Any:
    return tuple(map(_hashable, given)) if isinstance(given, list | tuple) else given


class Evaluator:
    """Predicts points with the models and machines of one study."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._sources = StudySources(inputs)

    def row(self, number: int, point: Point) -> Row:
        """The row of a point; whatever is wrong with the point is in the row. What this machine
        failed at is a WorkersError: the row would be another one where there is more memory."""
        row: Row = {"id": number, "point": point, "status": "ok", "reason": "", "prediction": None}
        row |= {"training": None, "scaling": None}
        try:
            self._predict(row, point)
        except Exception as error:
            row |= _unpredicted(number, error)
        return row

    def _predict(self, row: Row, point: Point) -> None:
        prediction = self.prediction(point)
        if self._inputs.anchors:
            prediction = prediction.anchored(self._inputs.anchors)
        row["prediction"] = prediction.as_dict()
        if "tokens" in point:
            training = prediction.cost.training(point["tokens"], prediction.tokens_per_step)
            row["training"] = training.as_dict()
        if not prediction.memory.fits:
            row |= {"status": "infeasible", "reason": does_not_fit(prediction)}

    def prediction(self, point: Point) -> Prediction:
        """What is predicted for a point, or a SimgptError."""
        question = question_of_point(point, self._inputs.folder)
        if point.get("plan") == BEST:
            return self._best(question)
        return step_of(question, self._sources).predicted()

    def _best(self, question: Question) -> Prediction:
        """The prediction of the fastest plan that fits, of all that have the question's keys."""
        from simulator import search

        devices = question.devices
        assert devices is not None
        gpt = self._sources.model(question)
        batch = batch_of(question, gpt)
        assert batch is not None
        machine = with_room(self._sources.machine(question), devices)
        placed = self._sources.placed(question.placement, machine, devices)
        stack, _ = stack_of(question, machine, question.plan, self._sources, searches=True)
        fixed = fixed_of(question.plan)
        return search.best_plan(
            gpt, machine, devices, batch, fixed=fixed, placement=placed, stack=stack
        )


def _unpredicted(number: int, error: Exception) -> Row:
    """What a row has in place of a prediction."""
    ours = isinstance(error, SimgptError)
    what = _one_line(error) if ours else _named(error)
    if _is_of_the_machine(error):
        raise _failed(number, what) from None
    return {"status": "infeasible" if ours else "error", "reason": what}


def _failed(number: int, what: str) -> WorkersError:
    return WorkersError(
        f"this machine failed at row {number} ({what[:200]}); it may need more memory than there "
        "is; the rows before are kept"
    )


def _is_of_the_machine(error: BaseException | None) -> bool:
    """Whether an error, or one that it came of, is a lack of memory, files or libraries."""
    if isinstance(error, SimgptError):
        return error.exit_code == ExitStatus.MACHINE_FAILED
    seen = 0
    while error is not None and seen < MOST_CAUSES:
        if isinstance(error, OF_THE_MACHINE):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {_one_line(error)}".rstrip(": ")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
