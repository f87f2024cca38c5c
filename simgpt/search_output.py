"""The answers of `simgpt search`, in words and in JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simgpt import tables
from simgpt.advice import none_fits
from topologies.files.units import format_energy

if TYPE_CHECKING:
    from simulator.predict import Prediction
    from simulator.search import Progress, SearchProblem
    from simulator.search.baselines import Ranked
    from topologies.machine import Machine


@dataclass(frozen=True)
class Found:
    """What a search for the best plans in an `objective` found, and what those along its fronts
    did; the search was to end where the best may miss the optimum by a share `enough` at most."""

    problem: SearchProblem
    machine: Machine
    state: Progress
    objective: str
    enough: float
    fronts: dict[str, list[Prediction]]

    def as_record(self) -> dict[str, Any]:
        """The answer as it stands in JSON; bounds are in seconds, or in joules for the energy.

        Where the search came to its end, nothing in it depends on how long that took or on how many
        processes it had, as the number of plans simulated does.
        """
        state = self.state
        return {
            "model": self.problem.gpt.name,
            "machine": self.machine.name,
            "software": self.machine.variant or None,
            "devices": self.problem.devices,
            "batch": self.problem.batch,
            "objective": self.objective,
            "plans_considered": state.considered,
            "plans_fitting": state.fitting,
            "plans_unpredicted": state.unpredicted,
            "unpredicted_reason": state.reason or None,
            "optimal": state.is_optimal,
            "bound": state.bound if state.found and state.bound else None,
            "gap": state.gap,
            "certificate": f"{self._counts()}: {self._end()}",
            "plans": [prediction.as_dict() for prediction in state.found],
            **{name: [each.as_dict() for each in front] for name, front in self.fronts.items()},
        }

    def describe(self) -> str:
        """The answer as a person reads it."""
        problem = self.problem
        head = (
            f"{problem.gpt.name} on {tables.several(problem.devices, 'device')} of "
            f"{self.machine.name}, {tables.several(problem.batch, 'sequence')} a step"
        )
        parts = [head, self.certificate()]
        titles = {"memory_front": "less and less memory", "devices_front": "time or node-hours"}
        best = "the best plans" if self.state.is_optimal else "the best plans so far"
        for title, found in (
            (f"{best} in {self.objective}", list(self.state.found)),
            *((f"the best for {titles[name]}", front) for name, front in self.fronts.items()),
        ):
            if found:
                parts.append(_table(title, found))
        return "\n\n".join(parts)

    def certificate(self) -> str:
        """What is known of the plans that were not simulated."""
        simulated = f", {self.state.simulated:,} simulated"
        return tables.paragraph(f"{self._counts(simulated)}: {self._end()}")

    def _counts(self, simulated: str = "") -> str:
        state = self.state
        fitting = f", at most {state.fitting:,} of them fit" if state.bound else ""
        counts = f"{state.considered:,} legal plans{fitting}{simulated}"
        if state.unpredicted:
            counts += f", {state.unpredicted:,} cannot be predicted ({state.reason})"
        return counts

    def _end(self) -> str:
        state = self.state
        those = "plan that can be predicted" if state.unpredicted else "plan"
        if not state.found:
            if not state.is_optimal:
                return "none found yet"
            return f"no {those} fits{none_fits(self.problem, self.machine, state)}"
        if state.is_optimal:
            return f"no other {those} is better than these"
        if not state.bound:
            return "stopped before anything was known of the others, which may be better"
        stopped = f"stopped at a gap of {tables.percent(self.enough)}"
        stopped = stopped if 0 < self.enough >= state.gap else "stopped early"
        return (
            f"{stopped}, no {those} takes less than {value_of(state.bound, self.objective)}, so "
            f"the best may miss the optimum by {tables.percent(state.gap)}"
        )


def moment(state: Progress, objective: str) -> str:
    """How far a search is, for those that wait for it."""
    found = f"best {value_of(state.best, objective)}" if state.found else "none found yet"
    if state.bounded < 1:
        share = tables.percent(state.bounded)
        return f"{state.considered:,} plans, {found}, bounding the space: {share}"
    below = f", none below {value_of(state.bound, objective)}" if state.bound else ""
    return f"{state.considered:,} plans, {state.simulated:,} simulated, {found}{below}"


def _table(title: str, found: list[Prediction]) -> str:
    rows = [
        (
            str(prediction.plan),
            f"{prediction.devices:,}",
            tables.seconds(prediction.step_s),
            tables.percent(prediction.hfu),
            tables.gib(prediction.memory.peak_bytes),
            tables.hours(prediction.cost.node_s_per_step),
            _energy(prediction),
        )
        for prediction in found
    ]
    columns = [title, "devices", "step", "HFU", "memory", "node-h", "energy"]
    return tables.table(columns, rows)


def _energy(prediction: Prediction) -> str:
    energy_j = prediction.cost.energy_j_per_step
    return "unknown" if energy_j is None else value_of(energy_j, "energy")


def value_of(value: float, objective: str) -> str:
    """An objective's value: seconds, or an energy."""
    return format_energy(value) if objective == "energy" else tables.seconds(value)


def describe_ranking(ranked: list[Ranked], tau: float | None) -> str:
    """AxoNN's ranking as a person reads it; one grid alone has no rank correlation."""
    rows = [
        (
            str(each.prediction.plan),
            tables.seconds(each.communication_s),
            tables.seconds(each.prediction.step_s),
        )
        for each in ranked
    ]
    title = "grids by AxoNN's model"
    table = tables.table([title, "its communication", "simulated step"], rows)
    if tau is None:
        return table
    return f"{table}\n\nrank correlation of the two (Kendall's tau): {tau:.2f}"
