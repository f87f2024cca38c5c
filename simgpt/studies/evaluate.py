"""From a point to its row: the prediction, or why there is none.

A process builds each machine, model and placement once and keeps it for the points to come.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from simgpt.advice import does_not_fit
from simgpt.options import batch_of
from simgpt.studies import best_plan as best
from simgpt.studies.errors import WorkersError
from simgpt.studies.inputs import Inputs, code_digest
from simgpt.studies.study_keys import Point, keys_of, plan_of
from simulator.predict import Prediction, predict
from simulator.stacks import EXECUTOR
from simulator.stacks.job import job_of
from topologies.errors import SimgptError
from topologies.exit_status import ExitStatus
from topologies.machine import Machine
from topologies.machine_files import with_settings
from topologies.placement import Placement, with_room
from topologies.placement_names import parse_placement
from topologies.session import current_session, gc_paused
from workload.descriptions.from_table import with_fields
from workload.expert_loads.histogram import routed
from workload.expert_loads.histogram_file import histogram_of

Row = dict[str, Any]
Batch = list[tuple[int, Point]]
MACHINES, PLACEMENTS = 16, 64  # kept in a process; a placement of 32,768 ranks takes 0.5 MB
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


class Evaluator:
    """Predicts points with the models and machines of one study."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._set = lru_cache(maxsize=MACHINES)(self._machine)
        self._placed = lru_cache(maxsize=PLACEMENTS)(parse_placement)

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
        gpt = with_fields(self._inputs.models[point["model"]], keys_of(point, "model"))
        if "routing" in point:
            document = self._inputs.routings[point["routing"]]
            gpt = routed(gpt, histogram_of(document, gpt, point["routing"]))
        machine = self._set(point["machine"], _settings(point))
        stack = self._inputs.stacks[point.get("stack", EXECUTOR.name)]
        devices, policy = point.get("devices"), point.get("placement", "scheduler")
        batch = batch_of(point.get("batch"), point.get("batch_tokens"), gpt, devices)
        if point.get("plan") == best.BEST:
            assert devices is not None
            assert batch is not None
            machine = with_room(machine, devices)
            placed: Placement = self._placed(policy, machine, devices)
            fixed = keys_of(point, "plan")
            return best.best_plan(
                gpt, machine, devices, batch, fixed=fixed, placement=placed, stack=stack
            )
        if devices is not None:
            machine = with_room(machine, devices)
        job = job_of(gpt, plan_of(point), stack, devices=devices, batch=batch)
        machine = with_room(machine, job.plan.grid.ranks)
        placed = self._placed(policy, machine, job.plan.grid.ranks)
        return predict(job.gpt, job.plan, machine, placement=placed, stack=job.stack)

    def _machine(self, name: str, settings: tuple[tuple[str, Any], ...]) -> Machine:
        machine = self._inputs.machines[name]
        return with_settings(machine, dict(settings)) if settings else machine


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


def _settings(point: Point) -> tuple[tuple[str, Any], ...]:
    return tuple((key, _hashable(given)) for key, given in keys_of(point, "machine").items())


def _hashable(given: Any) -> Any:
    return tuple(map(_hashable, given)) if isinstance(given, list | tuple) else given


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {_one_line(error)}".rstrip(": ")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
